"""kiln.exl2 with a stand-in for the program kiln, which writes down how it was called."""

import contextlib
import io
import json
import os
import stat
import sys
import tempfile
import types
import unittest
from unittest import mock

import kiln.exl2

PROGRAM = """#!%s
import json, os, sys
args = sys.argv[1:]
job = json.load(open(args[args.index("--job-file") + 1]))
json.dump({"args": args, "job": job}, open(os.environ["CALLED"], "w"))
if os.environ.get("FAIL"):
    print(json.dumps({"problems": [{"kind": "missing-file", "message": "gone"}]}))
    print("x: gone", file=sys.stderr)
    sys.exit(2)
for at in ("0.05", "0.37", "0.9", "1.0"):
    print('[STATUS]{"stage": "Compiling", "completion": %%s}[/STATUS]' %% at)
print("warning: something", file=sys.stderr)
print(json.dumps({"out": "o", "bytes": 5 << 20, "shards": 2}, indent=2))
"""


class Exl2(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        program = os.path.join(self.folder, "kiln")
        with open(program, "w") as f:
            f.write(PROGRAM % sys.executable)
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        self.called = os.path.join(self.folder, "called.json")
        patch = mock.patch.dict(os.environ, {"KILN": program, "CALLED": self.called})
        patch.start()
        self.addCleanup(patch.stop)
        self.job = {
            "in_dir": "model", "out_dir": "work", "compile_full": None, "bits": 4.0, "progress": "compile",
            "measurement": {"large": 1}, "status_output": False,
        }  # fmt: skip

    def compile(self, model=None, step=kiln.exl2.compile_model):
        before = json.dumps(self.job)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertIsNone(step(self.job, self.fail, model))
        self.assertEqual(json.dumps(self.job), before)
        with open(self.called) as f:
            return json.load(f), out.getvalue(), err.getvalue()

    def test_working_folder(self):
        called, out, err = self.compile()
        args = called["args"]
        self.assertEqual(args[:2], ["model", "compile"])
        self.assertEqual(args[args.index("--job") + 1], "work")
        self.assertEqual(args[args.index("--model") + 1], "model")
        self.assertIn("--compat", args)
        self.assertIn("--replace", args)
        self.assertNotIn("--merge", args)
        self.assertEqual(called["job"]["bits"], 4.0)
        self.assertNotIn("measurement", called["job"])
        self.assertFalse(os.path.exists(args[args.index("--job-file") + 1]))
        self.assertIn("Writing shards: 30%", out)
        self.assertNotIn("[STATUS]", out)
        self.assertIn("5 MB in 2 shards", out)
        self.assertIn("warning: something", err)

    def test_status(self):
        self.job["status_output"] = True
        _, out, _ = self.compile()
        self.assertIn('[STATUS]{"stage": "Compiling", "completion": 0.37}[/STATUS]\n', out)
        self.assertIn('"completion": 1.0}', out)

    def test_folder(self):
        model = types.SimpleNamespace(config=types.SimpleNamespace(model_dir="elsewhere"))
        self.job["compile_full"] = os.path.join(self.folder, "out")
        called, _, _ = self.compile(model)
        self.assertEqual(called["args"][called["args"].index("--model") + 1], "elsewhere")
        self.assertNotIn("--merge", called["args"])
        os.mkdir(self.job["compile_full"])
        self.assertNotIn("--merge", self.compile()[0]["args"])
        open(os.path.join(self.job["compile_full"], "mine"), "w").close()
        self.assertIn("--merge", self.compile()[0]["args"])

    def test_error(self):
        with mock.patch.dict(os.environ, {"FAIL": "1"}), self.assertRaises(kiln.exl2.CompileError) as e:
            self.compile()
        self.assertIn("exit code 2", str(e.exception))
        self.assertIn("x: gone", str(e.exception))
        self.assertEqual(e.exception.problems[0]["kind"], "missing-file")

    def test_no_program(self):
        with mock.patch.dict(os.environ, {"KILN": os.path.join(self.folder, "none")}), self.assertRaises(kiln.exl2.CompileError):
            self.compile()

    def test_install(self):
        package, conversion = types.ModuleType("exllamav2"), types.ModuleType("exllamav2.conversion")
        compiling, version = types.ModuleType("exllamav2.conversion.compile"), types.ModuleType("exllamav2.version")
        compiling.compile_model, version.__version__ = len, "0.2.9"
        package.conversion, conversion.compile, package.version = conversion, compiling, version
        modules = {m.__name__: m for m in (package, conversion, compiling, version)}
        with mock.patch.dict(sys.modules, modules):
            self.assertIs(kiln.exl2.install(compat=False), len)
            called, _, _ = self.compile(step=compiling.compile_model)
            self.assertIn("--compat=false", called["args"])
            self.assertEqual(called["args"][called["args"].index("--converter-version") + 1], "0.2.9")
            self.job["exllamav2_version"] = "0.2.1"
            kiln.exl2.install()
            called, _, _ = self.compile(step=compiling.compile_model)
            self.assertIn("--compat", called["args"])
            self.assertNotIn("--converter-version", called["args"])


if __name__ == "__main__":
    unittest.main()
