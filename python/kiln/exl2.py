"""The last step of exllamav2's converter, done by the program `kiln`.

`convert.py` calls `compile_model` when everything is quantized. Here is a function with the same arguments that runs
`kiln model compile` instead: it needs little memory whatever the shard size, goes on where it was after an interruption, and
writes the same files.

From outside:

    python -m kiln.exl2 convert.py -i MODEL -o WORK -cf OUT -b 4.0

From Python, before exllamav2.conversion.convert_exl2 is imported:

    import kiln.exl2
    kiln.exl2.install()

The program is the one that KILN names, else one beside this file, on PATH or beside the interpreter. Nothing is imported
here but the standard library; exllamav2 is imported by install.
"""

import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading

from ._jit import BuildError, _kiln

__all__ = ["CompileError", "compile_model", "install"]


class CompileError(RuntimeError):
    """The model was not compiled, and why. problems is a list of maps with kind, file, tensor and message."""

    def __init__(self, message, problems=()):
        super().__init__(message)
        self.problems = list(problems)


def compile_model(job, save_fn, model):
    """Do what exllamav2.conversion.compile.compile_model does, with the same arguments.

    The job is read, not changed, and save_fn is not called, as in the original: convert.py itself sets the progress to
    "finished" and saves the job when this function returns. After an exception the job stays at "compile", and convert.py
    started again comes back here.
    """
    _compile(job, model, compat=True)


def install(compat=True):
    """Put compile_model in the place of exllamav2's. compat=False writes the files of kiln's default mode: other names, a
    correct index, and a manifest. Returns the function that was there."""
    import exllamav2.conversion.compile as original

    def step(job, save_fn, model):
        _compile(job, model, compat)

    functools.update_wrapper(step, compile_model)
    replaced, original.compile_model = original.compile_model, step
    # A module that has imported the function by name keeps it.
    converter = sys.modules.get("exllamav2.conversion.convert_exl2")
    if converter is not None:
        converter.compile_model = step
    return replaced


def _program():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kiln" + (".exe" if os.name == "nt" else ""))
    if not os.environ.get("KILN") and os.access(beside, os.X_OK):
        return beside
    try:
        return _kiln()
    except BuildError as e:
        raise CompileError(str(e)) from None


def _version(job):
    """The release of exllamav2 that compiles, unless the job says which one has quantized."""
    if job.get("exllamav2_version") or job.get("version"):
        return None
    return getattr(sys.modules.get("exllamav2.version"), "__version__", None)


def _compile(job, model, compat):
    # What the job in memory says counts, not what is on disk. The measurement can be large and is
    # not needed.
    told = {k: v for k, v in job.items() if k not in ("measurement", "strategy")}
    told["progress"] = "compile"
    source = getattr(getattr(model, "config", None), "model_dir", None) or job["in_dir"]
    out = job.get("compile_full")
    argv = [_program(), "model", "compile", "--json", "--status-output", "--replace", "--job", job["out_dir"], "--model", source]
    if compat:
        argv.append("--compat")
    elif out is None:
        argv.append("--compat=false")
    if out is not None and os.path.isdir(out) and os.listdir(out):
        argv.append("--merge")  # as the original: what else is there stays
    version = _version(job)
    if version:
        argv += ["--converter-version", version]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(told, f)
        result = _run(argv + ["--job-file", path], bool(job.get("status_output")))
    print(" -- Compiled by kiln: %s, %d MB in %d shards" % (result["out"], result["bytes"] // 1024**2, result["shards"]), flush=True)


def _run(argv, status):
    """Run kiln, show what it says, and return its result."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, answer, shown = [], [], 0
    listener = threading.Thread(target=_relay, args=(process.stderr, said))
    listener.start()
    try:
        for line in process.stdout:
            text = line.decode(errors="replace")
            if not text.startswith("[STATUS]"):
                answer.append(text)
            elif status:
                print(text, end="", flush=True)
            else:
                done = int(100 * json.loads(text[len("[STATUS]") : text.rindex("[/STATUS]")])["completion"])
                if done >= shown + 10:
                    shown = done - done % 10
                    print(" -- Writing shards: %d%%" % shown, flush=True)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()  # it goes on where it was the next time
            process.wait()
        listener.join()
        process.stdout.close()
        process.stderr.close()
    try:
        result = json.loads("".join(answer))
    except ValueError:
        result = {}
    if code != 0 or "shards" not in result:
        raise CompileError("kiln model compile ended with exit code %d:\n%s" % (code, "".join(said[-20:])), result.get("problems", ()))
    return result


def _relay(stream, said):
    for line in stream:
        said.append(line.decode(errors="replace"))
        print(said[-1], end="", file=sys.stderr, flush=True)


def main(args):
    """Run a script with the step installed."""
    compat = "--default" not in args[:1]
    args = args if compat else args[1:]
    if not args or args[0].startswith("-"):
        raise SystemExit("usage: python -m kiln.exl2 [--default] convert.py [arguments of convert.py]")
    install(compat)
    sys.argv = args
    # As for a script that is run directly, modules beside it are found.
    sys.path.insert(0, os.path.dirname(os.path.abspath(args[0])))
    runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    from kiln import exl2

    exl2.main(sys.argv[1:])
