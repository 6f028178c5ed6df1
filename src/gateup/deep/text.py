"""The text that checked models read: plain English, a few hundred tokens in any vocabulary."""

TEXT = """\
The old lighthouse stood at the end of a long pier, and every evening the keeper climbed the \
stairs to light the lamp. He had done this for thirty years. When a storm came, he stayed awake \
the whole night, because ships on their way to the harbour could not see the rocks without his \
light. In the morning he wrote a few lines into a book: the weather, the wind, the names of the \
ships.

One day a young woman came to visit him. She was a teacher at the school in the village, and she \
wanted to know how the lamp worked. "It is quite simple," said the keeper. "The flame is small, \
but the glass around it is large. The glass collects the light and sends it out to the sea. \
Without the glass nobody would see it from more than a mile away."

The teacher thought about this for a while. Then she asked whether she could bring the children. \
They came on a Saturday in May, twenty of them, and each was allowed to turn the glass once. On \
the way home they counted the steps: there were one hundred and twelve. Some of the children \
wanted to become keepers themselves, others wanted to be captains, and one girl said that she \
would rather build the glass. Years later she did. She studied physics at the university, \
learned how light bends when it enters water or glass, and opened a small workshop near the \
harbour, where she made lenses for telescopes and cameras.
"""
