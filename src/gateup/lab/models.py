"""The models a lab can show: presets, the demo model, the one named on the command line, uploads.

A page asks for a model by its key in the URL. A key is never a path: the lab opens what the command
line named, and nothing that a browser sends names a file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from gateup.errors import GateupError
from gateup.files.checkpoint import DEMO, DEMO_PACKAGE, Checkpoint, open_model
from gateup.lab.errors import LabError
from gateup.model import presets

DEFAULT = "llama-3-8b"
NAMED = "yours"
MAX_UPLOAD = 1 << 20
MAX_UPLOADS = 16


class Models:
    """Opens models by key, each once.

    named  what the command line was given, opened at once: its errors belong on the terminal
    """

    def __init__(self, named: str | None = None) -> None:
        self._opened: dict[str, Checkpoint] = {}
        self._uploads: OrderedDict[str, Checkpoint] = OrderedDict()
        self._lock = Lock()
        self.default = DEFAULT
        if named is not None:
            self._opened[NAMED] = open_model(named)
            self.default = NAMED

    def labels(self) -> dict[str, str]:
        """Key -> what the list of models shows; one's own first."""
        out: dict[str, str] = {}
        if NAMED in self._opened:
            out[NAMED] = f"★ {self._opened[NAMED].spec.name}"
        for key, checkpoint in reversed(self._uploads.items()):
            out[key] = f"★ {checkpoint.spec.name}"
        if find_spec(DEMO_PACKAGE) is not None:
            out[DEMO] = f"{DEMO} (GGUF)"
        return out | {name: name for name in presets.PRESETS}

    def runnable(self) -> dict[str, str]:
        """Those of `labels` that have weights: one's own where it has, and the demo model."""
        named = self._opened.get(NAMED)
        kept = {DEMO} if named is None or not named.headers else {NAMED, DEMO}
        return {key: label for key, label in self.labels().items() if key in kept}

    def knows(self, key: str) -> bool:
        return key in self._opened or key in self._uploads or key in self.labels()

    def open(self, key: str) -> Checkpoint:
        """The model of that key; the default one for a key this run does not know.

        Raises GateupError where the demo model cannot be read.
        """
        if not self.knows(key):
            key = self.default
        with self._lock:
            found = self._uploads.get(key) or self._opened.get(key)
            if found is None:
                found = self._opened[key] = open_model(key)
            return found

    def upload(self, name: str, data: bytes) -> str:
        """Take a config.json and return its key. Parsed as JSON, whatever it is called.

        Raises GateupError for what is no config.json of a model gateup knows.
        """
        if len(data) > MAX_UPLOAD:
            raise LabError("model", "error.upload", n=len(data), most=MAX_UPLOAD)
        label = Path(name.replace("\\", "/")).name or "config.json"
        label = label if label.isprintable() else "config.json"
        # The folder's name is random, the file's is ours: nothing of the upload is part of a path.
        with tempfile.TemporaryDirectory(prefix="gateup-lab-") as folder:
            path = Path(folder) / "config.json"
            path.write_bytes(data)
            try:
                opened = open_model(path)
            except GateupError as error:
                raise type(error)(
                    error.what, where=label, expected=error.expected, remedy=error.remedy
                ) from None
        # By contents and name: two names of one content are two entries of the list.
        key = "upload-" + hashlib.sha256(label.encode() + b"\0" + data).hexdigest()[:12]
        checkpoint = replace(opened, path=None, spec=replace(opened.spec, name=label[:80]))
        with self._lock:
            self._uploads[key] = checkpoint
            self._uploads.move_to_end(key)
            while len(self._uploads) > MAX_UPLOADS:
                self._uploads.popitem(last=False)
        return key
