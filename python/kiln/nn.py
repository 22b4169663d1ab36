"""Quantized layers for torch: QLinear, around one matrix or several, and QExperts, for a mixture of experts.

Their products are operators of torch, kiln::linear and kiln::experts, which torch.compile takes into its graphs.
"""

import itertools
import threading
import weakref

import torch

__all__ = ["Piece", "QExperts", "QLinear"]

_layers = weakref.WeakValueDictionary()  # by number, for the operators, which take no objects
_numbers = itertools.count()
# A mixture of experts looks at the router's choice on the host, which no CUDA graph can hold: torch.compile splits its graph there.
_unsafe = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))


def _weights(matrix, like):
    return matrix.dequantize(like=like.new_empty(0, dtype=torch.float16))


class Piece:
    """Columns of a matrix: width of them from first on."""

    __slots__ = ("first", "matrix", "width")

    def __init__(self, matrix, first=0, width=None):
        self.matrix, self.first, self.width = matrix, first, matrix.cols - first if width is None else width

    def of(self, y):
        return y if self.width == y.shape[-1] else y[..., self.first : self.first + self.width]


class Shared:
    """A matrix that several layers have columns of, one after the other, and which take the same input: the first one that is
    called multiplies for all. Each of the others has its part of that product once, of the same input unchanged.
    """

    def __init__(self, matrix, widths):
        self.matrix, self.widths, self.cols, self.local = matrix, list(widths), matrix.cols, threading.local()
        self.number, self.traced = next(_numbers), None
        _layers[self.number] = self

    def multiply(self, x):
        return self.matrix(x if x.dtype is torch.float16 else x.to(torch.float16)).to(x.dtype)

    def backward(self, gradient):
        return gradient @ _weights(self.matrix, gradient).to(gradient.dtype).T

    def traced_part(self, i, x):
        """The same for the compiler: one operator for all parts, and nothing is held when the last of them is made."""
        if self.traced is None or self.traced[0] is not x:
            self.traced = x, torch.ops.kiln.linear(x, self.number, self.cols)
        y = self.traced[1]
        if i == len(self.widths) - 1 or not torch.compiler.is_compiling():
            self.traced = None
        return y.split(self.widths, -1)[i]

    def part(self, i, x):
        try:
            held = self.local.held
        except AttributeError:
            held = self.local.held = [None, 0, (), 0]  # input, its version, parts, how many are left
        version = 0 if x.is_inference() else x._version
        if held[0] is not x or held[1] != version or held[2][i] is None:
            y = self.matrix(x if x.dtype is torch.float16 else x.to(torch.float16))
            held[:] = x, version, list(y.split(self.widths, -1)), len(self.widths)
        parts = held[2]
        y, parts[i] = parts[i], None
        held[3] -= 1
        if not held[3]:
            held[0], held[2] = None, ()
        return y


class QLinear(torch.nn.Linear):
    """A linear layer of quantized matrices that take the same input and whose results stand side by side.

    pieces are kiln.QMatrix objects, with their biases, or Pieces of them. Without pieces the layer is empty until fill is called.
    Its weight is an empty tensor that says on which device the layer is and what type the model around it has.
    """

    def __init__(self, in_features, out_features, pieces=(), dtype=torch.float16):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = in_features, out_features, None
        self.register_buffer("weight", torch.empty(0, dtype=dtype), persistent=False)
        self.pieces, self.shared, self.whole = (), None, None
        self.number = next(_numbers)
        _layers[self.number] = self
        if pieces:
            self.fill(pieces, dtype)

    def fill(self, pieces, dtype=torch.float16, shared=None):
        """Give the layer its matrices; shared is a pair of what multiplies for it and for others, and which of them it is."""
        pieces = tuple(p if isinstance(p, Piece) else Piece(p) for p in pieces)
        for p in pieces:
            m = p.matrix
            if m.rows != self.in_features or p.first + p.width > m.cols or m.device != pieces[0].matrix.device:
                raise ValueError(
                    "a matrix of %d×%d on device %d in a layer of %d inputs" % (m.rows, m.cols, m.device, self.in_features)
                )
        if sum(p.width for p in pieces) != self.out_features:
            raise ValueError("%s columns in a layer of %d outputs" % ([p.width for p in pieces], self.out_features))
        self.pieces, self.shared = pieces, shared
        self.whole = pieces[0].matrix if shared is None and len(pieces) == 1 and pieces[0].width == pieces[0].matrix.cols else None
        device = pieces[0].matrix.device
        self.weight = torch.empty(0, dtype=dtype, device="cpu" if device < 0 else "cuda:%d" % device)

    def forward(self, x):
        # The operator is for the compiler and for gradients; a plain call costs less.
        if torch.compiler.is_compiling() or x.requires_grad and torch.is_grad_enabled():
            if self.shared is None:
                return torch.ops.kiln.linear(x, self.number, self.out_features)
            shared, i = self.shared
            return shared.traced_part(i, x)
        if self.whole is not None and x.dtype is torch.float16:
            return self.whole(x)
        return self.multiply(x)

    def multiply(self, x):
        """The product, without the operator. It may be a view."""
        if self.shared is not None:
            y = self.shared[0].part(self.shared[1], x)
        elif self.pieces:
            half = x if x.dtype is torch.float16 else x.to(torch.float16)
            parts = [p.of(p.matrix(half)) for p in self.pieces]
            y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        else:
            raise RuntimeError("the layer has no weights: fill was not called")
        return y if x.dtype is torch.float16 else y.to(x.dtype)

    def backward(self, gradient):
        """The gradient of the input, for adapters under the layer: the weights are dequantized for it, one matrix at a time."""
        total, begin = 0, 0
        for p in self.pieces:
            total = total + gradient[..., begin : begin + p.width] @ p.of(_weights(p.matrix, gradient)).to(gradient.dtype).T
            begin += p.width
        return total

    def dequantize(self):
        """The weights as those of a torch.nn.Linear, [out_features, in_features], float16."""
        return torch.cat([p.of(_weights(p.matrix, self.weight)) for p in self.pieces], 1).T.contiguous()

    def _apply(self, fn, *args, **kwargs):
        before = self.weight.device
        super()._apply(fn, *args, **kwargs)
        if self.pieces and self.weight.device != before:
            place, self.weight = self.weight.device, torch.empty(0, dtype=self.weight.dtype, device=before)
            raise RuntimeError(
                "quantized layers stay on %s, where they were loaded: load the model with device_map=%r" % (before, str(place))
            )
        return self

    def extra_repr(self):
        bits = ", ".join("%.2f" % p.matrix.bits_per_weight for p in self.pieces)
        return "in_features=%d, out_features=%d, bits per weight=%s" % (self.in_features, self.out_features, bits or "none")


class QExperts(torch.nn.Module):
    """The experts of a mixture: each has a layer for gate and up, side by side, and one for down.

    It takes what transformers passes to its own: the inputs, the experts chosen for each and their weights (in either order; DBRX
    of transformers 4 passes the weights of all experts first).
    """

    def __init__(self, experts, activation):
        super().__init__()
        self.gate_up = torch.nn.ModuleList(gate_up for gate_up, _ in experts)
        self.down = torch.nn.ModuleList(down for _, down in experts)
        self.act_fn = activation
        self.number = next(_numbers)
        _layers[self.number] = self

    def forward(self, x, *routing):
        index, weights = routing[-2:]
        if index.is_floating_point():
            index, weights = weights, index
        return torch.ops.kiln.experts(x, index, weights, self.number)

    def multiply(self, x, index, weights):
        flat = x.reshape(-1, x.shape[-1])
        out = torch.zeros_like(flat)
        chosen = index.reshape(flat.shape[0], -1)
        weights = weights.reshape(chosen.shape)
        for e in chosen.unique().tolist():
            if e >= len(self.down):  # transformers marks with it what another process computes
                continue
            row, slot = torch.where(chosen == e)
            gate, up = self.gate_up[e].multiply(flat[row]).chunk(2, -1)
            y = self.down[e].multiply(self.act_fn(gate) * up)
            out.index_add_(0, row, (y * weights[row, slot, None]).to(out.dtype))
        return out.view(x.shape)


_library = torch.library.Library("kiln", "DEF")
_library.define("linear(Tensor x, int layer, int features) -> Tensor")
_library.define("linear_backward(Tensor gradient, int layer, int features) -> Tensor")
_library.define("experts(Tensor x, Tensor index, Tensor weights, int layer) -> Tensor", tags=_unsafe)


def _linear(x, layer, features):
    return _layers[layer].multiply(x).contiguous()


def _linear_backward(gradient, layer, features):
    return _layers[layer].backward(gradient)


def _experts(x, index, weights, layer):
    return _layers[layer].multiply(x, index, weights)


for _place in ("CPU", "CUDA"):
    _library.impl("linear", _linear, _place)
    _library.impl("linear_backward", _linear_backward, _place)
    _library.impl("experts", _experts, _place)


@torch.library.register_fake("kiln::linear", lib=_library)
@torch.library.register_fake("kiln::linear_backward", lib=_library)
def _(x, layer, features):
    return x.new_empty((*x.shape[:-1], features))


@torch.library.register_fake("kiln::experts", lib=_library)
def _(x, index, weights, layer):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.layer, ctx.features = inputs[1], inputs[0].shape[-1]


def _backward(ctx, gradient):
    return torch.ops.kiln.linear_backward(gradient, ctx.layer, ctx.features), None, None


torch.library.register_autograd("kiln::linear", _backward, setup_context=_setup, lib=_library)
