"""What each of two processes of torchrun does for test_transformers.py: run, gather, save.

torchrun --nproc-per-node 2 -m tests.parallel.transformers_ranks FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import AutoModelForCausalLM

from gateup.errors import GateupError
from gateup.hf.patch import patch, unpatch
from gateup.ops.options import MLPOptions
from gateup.parallel import full_state_dict, tensor_parallel
from tests.hf.families import build, step, tokens

# The options each family is patched with before (None: not patched).
CASES = {
    "llama": None,
    "phi3": MLPOptions(save="input", tile=5),
    "mixtral": MLPOptions(save="gate_up"),
    "qwen2_moe": None,
    "deepseek_v3": None,
    "gpt_oss": None,
}


def whole(results, shapes):
    """Gathered, in the shapes of one process."""
    return {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).reshape(shapes.get(name, t.shape))
        for name, t in results.items()
    }


def spread(family, dtype, mesh, options=None):
    model = build(family, dtype)
    if options is not None:
        patch(model, options=options, quiet=True)
    shapes = {n: p.shape for n, p in model.named_parameters()}
    return tensor_parallel(model, mesh), shapes


def saved_and_loaded(model, folder):
    """The model as one process reads what the ranks wrote."""
    state = full_state_dict(model)
    if dist.get_rank() == 0:
        model.save_pretrained(folder, state_dict=state)
    dist.barrier()
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh, keep = init_device_mesh("cpu", (2,)), {}
    for family, options in CASES.items():
        model, shapes = spread(family, torch.float64, mesh, options)
        keep[family] = whole(step(model, tokens()), shapes)
    for family in ("llama", "phi3", "gpt_oss"):
        model, _ = spread(family, torch.float32, mesh)
        ids = tokens()[:, :5]
        with torch.no_grad():
            generated = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
            with CommDebugMode() as mode:
                model(ids)
        keep["generated", family] = generated
        keep["collectives", family] = {
            str(op).rpartition(".")[2]: n for op, n in mode.get_comm_counts().items()
        }
        keep["saved", family] = saved_and_loaded(model, folder / family)
        keep["unpatched", family] = unpatch(model)
    try:
        tensor_parallel(build("llama"), mesh, sequence_parallel=True)
    except GateupError as error:
        keep["refusal"] = str(error)
    torch.save(keep, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
