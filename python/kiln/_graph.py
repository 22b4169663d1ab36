"""Steps of generation as CUDA graphs: one launch in place of a thousand.

A step of a model with a static cache is captured once and replayed. While it is captured, a few small functions of the
model are replaced by fused ones: norms, rotary embeddings and updates of the cache by what torch.compile makes of them, and
attention of one token by that of _decode. Nothing of that touches the model itself.
"""

import contextlib
import copy
import functools
import importlib.util
import sys
import weakref

import torch
from transformers.cache_utils import StaticLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .nn import QExperts


def can_capture(model, cache):
    """Whether steps of the model with this cache do the same every time, and nothing on the host."""
    return _is_static(cache) and _state(model) is not None


def _is_static(cache):
    layers = getattr(cache, "layers", None)
    return bool(
        layers
        and all(type(layer).__name__ == "StaticLayer" and layer.is_initialized and layer.keys.is_cuda for layer in layers)
        and len({layer.keys.device for layer in layers}) == 1
    )


def _state(model):
    """What a graph of the model holds: where its parameters are, and which adapters are used. None if there can be no graph."""
    adapters = []
    for name, module in model.named_modules():
        # Experts are chosen on the host; what is called before a layer (by peft, to mix adapters) may do anything.
        if isinstance(module, QExperts) or "experts" in name or module._forward_pre_hooks:
            return None
        if hasattr(module, "base_layer") and hasattr(module, "active_adapters"):  # of peft
            adapters.append((tuple(module.active_adapters), module.disable_adapters, str(getattr(module, "scaling", None))))
    return tuple(adapters), tuple(p.data_ptr() for p in model.parameters())


class Graph:
    """A function of static tensors, captured. counters are tensors that it changes and that stay as they are here."""

    def __init__(self, function, counters, model):
        before = [c.clone() for c in counters]
        late = []  # lengths of caches, which are counted up all at once, at the end

        def whole():
            late.clear()
            result = function()
            if late:
                torch._foreach_add_(late, 1)
            return result

        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with fused(model, late), torch.no_grad():
            with torch.cuda.stream(self.stream):
                for _ in range(2):  # what the first call compiles or allocates
                    whole()
                    for c, b in zip(counters, before):
                        c.copy_(b)
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.result = whole()
        torch.cuda.current_stream().wait_stream(self.stream)

    def replay(self):
        self.graph.replay()
        return self.result


class Calls:
    """What model.generate calls for every token after the first, in the place of a compiled model. One graph is kept.

    The graph counts positions up and lets the mask see the next token, so that generate need not make either for every step:
    prepared has them.
    """

    def __init__(self, model, compiled):
        self.model, self.compiled = weakref.ref(model), compiled
        self.state = self.key = self.graph = self.inputs = self.counted = self.memory = self.next = None
        self.length = 0  # of all tokens, when the next step was prepared last
        self.cache = lambda: None  # a weak reference to the one that has the memory

    def begin(self):
        """Before each generation: the graph of a model that has changed since is of no use."""
        state, self.next = _state(self.model()), None
        if state != self.state:
            self.state, self.key, self.graph, self.memory = state, None, None, None
        return self

    def prepared(self, ids, cache):
        """The inputs of the step for ids, if it follows the last one. None if transformers has to make them."""
        follows = self.next is not None and cache is self.cache() and ids.shape[1] == self.length + 1
        inputs, self.next, self.length = self.next if follows else None, None, ids.shape[1]
        return inputs and {**inputs, "past_key_values": cache, "input_ids": ids[:, -1:]}

    def __call__(self, **kwargs):
        model, cache = self.model(), kwargs.get("past_key_values")
        tensors = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
        if self.state is None or any(isinstance(v, (dict, list, tuple)) for v in kwargs.values()):
            return self.compiled(**kwargs)
        if self.cache() is not cache and not _is_static(cache):
            return self.compiled(**kwargs)
        key = [(k, v.shape, v.dtype) if k in tensors else (k, id(v)) for k, v in sorted(kwargs.items()) if v is not cache]
        if key != self.key or not self._is_mine(cache):
            self.key = self.graph = self.memory = None
            self.inputs = {k: v.clone() for k, v in tensors.items()}
            # The graph's own cache has the same memory: what holds the caller's would keep it from serving the next one.
            twin = copy.copy(cache)
            twin.layers = [copy.copy(layer) for layer in cache.layers]
            fixed, self.counted = {**kwargs, **self.inputs, "past_key_values": twin}, _counted(self.inputs, cache)
            step = _counting(lambda: model(**fixed), self.counted, twin)
            self.graph = Graph(step, [*counters(cache), *self.counted.values()], model)
            self.key, self.cache, self.memory = key, weakref.ref(cache), _memory(cache)
        else:
            for k, v in tensors.items():
                if v is not self.inputs[k]:
                    self.inputs[k].copy_(v)
        if self.counted:
            self.next = {k: self.inputs.get(k, v) for k, v in kwargs.items() if v is not cache and k != "return_dict"}
        result = self.graph.replay()
        return type(result)(**{**result, "past_key_values": cache})

    def _is_mine(self, cache):
        """Whether the cache is that of the graph. A new one like it becomes that, once the old one is gone."""
        if self.cache() is cache:
            return True
        new = _memory(cache)
        if self.cache() is not None or [t.shape for t in new] != [t.shape for t in self.memory]:
            return False
        torch._foreach_copy_([t.detach() for t in self.memory], [t.detach() for t in new])
        memory = iter(self.memory)
        for layer in cache.layers:
            for name in _tensors(layer):
                setattr(layer, name, next(memory))
        self.cache = weakref.ref(cache)
        return True


def _counted(inputs, cache):
    """The inputs that a graph can count up itself, if those are all that change beside the token; else none."""
    counted = {k: v for k, v in inputs.items() if k != "input_ids"}
    known = {
        "position_ids": lambda v: not v.is_floating_point() and v.shape[-1] == 1,
        "attention_mask": lambda v: v.dtype is torch.bool and v.dim() == 4 and v.shape[2] == 1,
    }
    if not counters(cache) or "input_ids" not in inputs or not all(k in known and known[k](v) for k, v in counted.items()):
        return {}
    return counted


def _counting(step, counted, cache):
    """The step; positions and mask, where they are counted, are those of the next one when it ends."""
    position, mask = counted.get("position_ids"), counted.get("attention_mask")

    def whole():
        if mask is not None:
            then = (counters(cache)[0] + 1).clamp(max=mask.shape[-1] - 1).view(1)
        result = step()
        if position is not None:
            position.add_(1)
        if mask is not None:
            mask.index_fill_(-1, then, True)
        return result

    return whole


def _tensors(layer):
    return [n for n in ("keys", "values", "cumulative_length") if isinstance(getattr(layer, n, None), torch.Tensor)]


def _memory(cache):
    return [getattr(layer, n) for layer in cache.layers for n in _tensors(layer)]


def counters(cache):
    found = (getattr(layer, "cumulative_length", None) for layer in cache.layers)
    return [t for t in found if isinstance(t, torch.Tensor)]


class Steps:
    """Generation of a batch, token by token, all on the GPU: each replay chooses a token and feeds it to the next one.

    choose makes tokens [batch] of logits [batch, vocabulary], without looking at anything on the host.
    """

    def __init__(self, model, ids, length, choose, **prefill):
        import transformers

        self.model, batch = model, ids.shape[0]
        choose = _compile()(choose)
        self.old = transformers.__version__.startswith("4.")  # which wants to be told the position
        self.cache = transformers.StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=length)
        self.position = torch.arange(ids.shape[1], device=ids.device)
        with torch.no_grad():
            logits = self._forward(ids, logits_to_keep=1, **prefill)
        self.position = torch.tensor([ids.shape[1]], device=ids.device)
        self.tokens = choose(logits).view(batch, 1)
        self.captured = can_capture(model, self.cache)

        def step():
            self.tokens.copy_(choose(self._forward(self.tokens)).view(batch, 1))
            self.position.add_(1)
            return self.tokens

        saved = self.tokens.clone()
        self.step = (
            Graph(step, [self.tokens, self.position, *counters(self.cache)], model).replay
            if self.captured
            else torch.no_grad()(step)
        )
        self.tokens.copy_(saved)

    def _forward(self, ids, **more):
        where = {"cache_position": self.position} if self.old else {}
        position = self.position[None].expand(ids.shape[0], -1)
        return self.model(input_ids=ids, position_ids=position, past_key_values=self.cache, use_cache=True, **where, **more).logits[
            :, -1
        ]


# What is replaced while a step is captured.


def _compile(*options):
    """torch.compile, or nothing where it has no compiler. Options that this torch does not have are left out."""
    if not torch.cuda.is_available() or not importlib.util.find_spec("triton"):
        return lambda f: f
    known = torch._inductor.list_options() if options else ()
    return functools.partial(torch.compile, options={o: True for o in options if o in known} or None)


PARTS = ("norms", "rotary", "cache", "attention", "activation", "residual")


@contextlib.contextmanager
def fused(model, late, parts=PARTS):
    """Within, calls of the model use fused functions where they are known to do the same. Of caches that were written to, late has
    the lengths, which are still the old ones."""
    undo = []

    def put(owner, name, new):
        undo.append((owner, name, vars(owner).get(name), name in vars(owner)))
        setattr(owner, name, new)

    compile, several = _compile(), _compile("combo_kernels")  # the latter where results do not depend on each other
    norms, activations, sums, places, ready = {}, {}, {}, set(), {}
    after = _after(model)
    for module in model.modules():
        kind = type(module)
        if "norms" in parts and kind.__name__.endswith("RMSNorm") and "forward" not in vars(module):
            if kind not in norms:
                norms[kind] = compile(kind.forward)
            put(module, "forward", _bind(_norm, ready, norms[kind], module))
        if "activation" in parts and kind.forward.__code__.co_names == _gated and "forward" not in vars(module):
            act = module.act_fn
            if type(act) not in activations:
                activations[type(act)] = compile(lambda gate, up, act=act: act(gate) * up)
            put(module, "forward", _bind(_mlp, module, activations[type(act)]))
        if "residual" in parts and kind.forward.__code__.co_names == _decoder and "forward" not in vars(module):
            norm = type(module.post_attention_layernorm)
            if norm not in sums:
                sums[norm] = compile(_bind(_add, norm.forward))
            put(module, "forward", _bind(_layer, module, sums[norm], after.get(module), ready))
        if kind.__name__.endswith("Attention") and hasattr(sys.modules[kind.__module__], "apply_rotary_pos_emb"):
            places.add(kind.__module__)
    if "rotary" in parts:
        for place in places:
            put(sys.modules[place], "apply_rotary_pos_emb", several(sys.modules[place].apply_rotary_pos_emb))
    if "cache" in parts:
        put(StaticLayer, "update", _bind_update(StaticLayer.update, several(_write), late))
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if "attention" in parts:
        few = None
        if isinstance(compile, functools.partial):
            from . import _decode as few  # needs Triton
        ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *args, **kwargs: _attention(plain, few, *args, **kwargs)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = plain
        for owner, name, old, mine in reversed(undo):
            setattr(owner, name, old) if mine else delattr(owner, name)


def _bind_update(plain, write, late):
    def update(layer, key, value, *args, **kwargs):
        length = getattr(layer, "cumulative_length", None)
        if not isinstance(length, torch.Tensor) or key.shape[2] != 1:  # transformers 4
            return plain(layer, key, value, *args, **kwargs)
        # transformers marks its tensors as those of one graph; these are the same memory without the mark.
        write(layer.keys.detach(), layer.values.detach(), length.detach(), key, value)
        late.append(length)
        return layer.keys, layer.values

    return update


def _write(keys, values, length, key, value):
    keys.index_copy_(2, length.view(1), key)
    values.index_copy_(2, length.view(1), value)


def _bind(function, *first):
    return lambda *args, **kwargs: function(*first, *args, **kwargs)


# What the forward of an ordinary layer of a decoder names.
_decoder = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def _after(model):
    """For each layer of a decoder the norm that follows it: the first of the next layer, or that of the model."""
    found = {}
    for owner in model.modules():
        for layers in owner.children():
            if isinstance(layers, torch.nn.ModuleList) and all(type(m).forward.__code__.co_names == _decoder for m in layers):
                follow = [m.input_layernorm for m in layers][1:] + [getattr(owner, "norm", None)]
                found.update((m, n) for m, n in zip(layers, follow) if type(n) is type(m.post_attention_layernorm))
    return found


def _layer(module, add, after, ready, hidden_states, **kwargs):
    attended, _ = module.self_attn(hidden_states=module.input_layernorm(hidden_states), **kwargs)
    hidden_states, normed = add(module.post_attention_layernorm, hidden_states, attended)
    fed = module.mlp(normed)
    if after is None:
        return hidden_states + fed
    hidden_states, normed = add(after, hidden_states, fed)
    ready[after] = hidden_states, normed
    return hidden_states


def _norm(ready, norm, module, x):
    """A norm, unless the layer before has it ready."""
    of, normed = ready.pop(module, (None, None))
    return normed if of is x else norm(module, x)


def _add(norm, module, a, b):
    total = a + b
    return total, norm(module, total)


# What the forward of an ordinary gated MLP names: down_proj(act_fn(gate_proj(x)) * up_proj(x)).
_gated = ("down_proj", "act_fn", "gate_proj", "up_proj")


def _mlp(module, activation, x):
    return module.down_proj(activation(module.gate_proj(x), module.up_proj(x)))


def _attention(plain, few, module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """Attention of one token: the queries that share a key are its rows."""
    groups, mask = query.shape[1] // key.shape[1], attention_mask
    ordinary = query.shape[2] == 1 and mask is not None and mask.dim() == 4 and mask.shape[1] == 1
    if not ordinary or kwargs.get("position_bias") is not None or kwargs.get("s_aux") is not None or kwargs.get("softcap"):
        return plain(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    batch, heads, _, width = query.shape
    rows, mask = query.reshape(batch, heads // groups, groups, width), mask[..., : key.shape[2]]
    if few is not None and few.takes(rows, key, value, mask):
        out = few.attend(rows, key, value, mask, width**-0.5 if scaling is None else scaling)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, 1, heads, value.shape[-1]), None
