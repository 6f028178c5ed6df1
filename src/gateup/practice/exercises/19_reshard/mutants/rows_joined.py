def reshard(gate_up, down, tp):
    old, _, H = gate_up.shape
    I = old * down.shape[2]
    whole = down.transpose(1, 0, 2).reshape(H, I)
    return gate_up.reshape(tp, 2 * I // tp, H), whole.reshape(H, tp, I // tp).transpose(1, 0, 2)
