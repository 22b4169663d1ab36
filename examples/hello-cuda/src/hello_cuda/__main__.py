"""python -m hello_cuda: say what this build is and show that it computes."""

from array import array

from . import __version__, backend, saxpy

info = backend()
x, y = array("f", [1, 2, 3]), array("f", [10, 20, 30])
saxpy(2, x, y)
print(f"hello-cuda {__version__}")
print(f"toolkit  {info['toolkit']}")
print(f"archs    {' '.join(info['archs']) or '-'}")
print(f"GPU      {info['device'] if info['gpu'] else 'not used: ' + info['reason']}")
print(f"saxpy    2 * [1, 2, 3] + [10, 20, 30] = {[int(v) for v in y]}")
