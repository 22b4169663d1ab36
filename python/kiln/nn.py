"""Quantized layers for torch: QLinear, around one matrix or several, and QExperts, for a mixture of experts.

Their products are operators of torch, kiln::linear and kiln::experts, which torch.compile takes into its graphs.
"""

import itertools
import weakref

import torch

__all__ = ["QExperts", "QLinear"]

_layers = weakref.WeakValueDictionary()  # by number, for the operators, which take no objects
_numbers = itertools.count()
# A mixture of experts looks at the router's choice on the host, which no CUDA graph can hold: torch.compile splits its graph there.
_unsafe = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))


class QLinear(torch.nn.Linear):
    """A linear layer of quantized matrices that take the same input and whose results stand side by side.

    matrices are kiln.QMatrix objects, with their biases; widths says how many columns of each are results, the others
    being padding. Without matrices the layer is empty until fill is called. Its weight is an empty tensor that says on which
    device the layer is and what type the model around it has.
    """

    def __init__(self, in_features, out_features, matrices=(), widths=None, dtype=torch.float16):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = in_features, out_features, None
        self.register_buffer("weight", torch.empty(0, dtype=dtype), persistent=False)
        self.matrices, self.widths = (), ()
        self.number = next(_numbers)
        _layers[self.number] = self
        if matrices:
            self.fill(matrices, widths, dtype)

    def fill(self, matrices, widths=None, dtype=torch.float16):
        """Give the layer its matrices."""
        matrices = tuple(matrices)
        widths = tuple(widths) if widths else tuple(m.cols for m in matrices)
        for m, width in zip(matrices, widths):
            if m.rows != self.in_features or m.cols < width or m.device != matrices[0].device:
                raise ValueError("a matrix of %d×%d on device %d in a layer of %d inputs" % (m.rows, m.cols, m.device, self.in_features))
        if len(widths) != len(matrices) or sum(widths) != self.out_features:
            raise ValueError("%d matrices with %s columns in a layer of %d outputs" % (len(matrices), list(widths), self.out_features))
        self.matrices, self.widths = matrices, widths
        device = "cpu" if matrices[0].device < 0 else "cuda:%d" % matrices[0].device
        self.weight = torch.empty(0, dtype=dtype, device=device)

    def forward(self, x):
        # The operator is for the compiler and for gradients; a plain call costs less.
        if torch.compiler.is_compiling() or x.requires_grad and torch.is_grad_enabled():
            return torch.ops.kiln.linear(x, self.number, self.out_features)
        return self.multiply(x)

    def multiply(self, x):
        """The product, without the operator."""
        half = x if x.dtype is torch.float16 else x.to(torch.float16)
        if len(self.matrices) == 1:
            y = self.matrices[0](half)
            if y.shape[-1] != self.out_features:
                y = y[..., : self.out_features].contiguous()
        elif self.matrices:
            y = torch.cat([m(half)[..., :width] for m, width in zip(self.matrices, self.widths)], -1)
        else:
            raise RuntimeError("the layer has no weights: fill was not called")
        return y if x.dtype is torch.float16 else y.to(x.dtype)

    def backward(self, gradient):
        """The gradient of the input, for adapters under the layer: the weights are dequantized for it, one matrix at a time."""
        total, begin = 0, 0
        for m, width in zip(self.matrices, self.widths):
            w = m.dequantize(like=gradient.new_empty(0, dtype=torch.float16))[:, :width]
            total = total + gradient[..., begin : begin + width] @ w.to(gradient.dtype).T
            begin += width
        return total

    def dequantize(self):
        """The weights as those of a torch.nn.Linear, [out_features, in_features], float16."""
        like = self.weight.new_empty(0, dtype=torch.float16)
        return torch.cat([m.dequantize(like=like)[:, :width] for m, width in zip(self.matrices, self.widths)], 1).T.contiguous()

    def _apply(self, fn, *args, **kwargs):
        before = self.weight.device
        super()._apply(fn, *args, **kwargs)
        if self.matrices and self.weight.device != before:
            place, self.weight = self.weight.device, self.weight.to(before)
            raise RuntimeError("quantized layers stay on %s, where they were loaded: load the model with device_map=%r" % (before, str(place)))
        return self

    def extra_repr(self):
        bits = ", ".join("%.2f" % m.bits_per_weight for m in self.matrices)
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
_library.define("experts(Tensor x, Tensor index, Tensor weights, int layer) -> Tensor", tags=_unsafe)


def _linear(x, layer, features):
    return _layers[layer].multiply(x)


def _experts(x, index, weights, layer):
    return _layers[layer].multiply(x, index, weights)


for _place in ("CPU", "CUDA"):
    _library.impl("linear", _linear, _place)
    _library.impl("experts", _experts, _place)


@torch.library.register_fake("kiln::linear", lib=_library)
def _(x, layer, features):
    return x.new_empty((*x.shape[:-1], features))


@torch.library.register_fake("kiln::experts", lib=_library)
def _(x, index, weights, layer):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.layer = inputs[1]


def _backward(ctx, gradient):
    return _layers[ctx.layer].backward(gradient), None, None


torch.library.register_autograd("kiln::linear", _backward, setup_context=_setup, lib=_library)
