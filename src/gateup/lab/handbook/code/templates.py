table = rng.normal(size=(100, 8))  # the embedding: a row for each token
w = weights(8, 24)
question, template = [7, 8, 9], [1, 2, 3, 4]
plain = swiglu(table[question], *w)
wrapped = swiglu(table[template + question], *w)
print("tokens:", len(plain), "→", len(wrapped))
print("the question's own rows:", np.allclose(wrapped[len(template) :], plain))
