import ctypes
import pathlib

_lib = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libllama.so"))


def answer():
    return _lib.llama_answer()
