"""The chosen experts' MLPs (MoE), where a target has no operator for them.

hidden_states [N,H], index int64 [N,k], weights [N,k], gate_up [E,2I,H], down [E,H,I]
    [, gate_up_bias [E,2I], down_bias [E,H]] -> output [N,H].
Attributes: alpha, beta, limit (float). gate_up's product has gates and ups in turn. An expert gives

    gate, up = min(gate, limit), clip(up, -limit, limit)
    down (f(gate) * (up + beta)), and without a gate, of [E,I,H] in gate_up's place, down (f(up))

with one of the functions f in `_ACTIVATIONS`, of which swish is gate * sigmoid(alpha * gate),
and a row's output is the weighted sum over its k experts, which differ from each other. The work
follows the chosen experts, not all E. There are three forms:

    ExpertsGathered       copies the weights of all N * k choices, and multiplies at once
    ExpertsInBlocks       sorts the choices by expert into blocks of b rows, and takes a turn for
                          each block in use, with a copy of one expert's weights
    ExpertsInEveryBlock   the same in a Scan, with a turn for each block in use or not

Blocks have two more attributes: block (ints, [b]) and blocks (ints, [n]), how many there are at
most. The rest of an expert's last block repeats row 0, and nobody reads it.

Of experts whose weights are integers (BLOCK_EXPERTS of graphs/markers.py) only the chosen
ones are dequantized, by an operator of ONNX Runtime.
"""

from typing import NamedTuple

from snapexport.graphs.functions import Function
from snapexport.graphs.markers import SWISH

_CONSTANTS = """
  factor32 = Constant <value_float: float = @alpha> ()
  shift32 = Constant <value_float: float = @beta> ()
  most32 = Constant <value_float: float = @limit> ()
  factor = CastLike (factor32, hidden_states)
  shift = CastLike (shift32, hidden_states)
  most = CastLike (most32, hidden_states)
  least32 = Neg (most32)
  least = CastLike (least32, hidden_states)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  first_axis = Constant <value_ints = [0]> ()
  second_axis = Constant <value_ints = [1]> ()
  last_axis = Constant <value_ints = [-1]> ()
"""

_GATED = """
  pairs = Reshape (product, in_pairs)
  all_gates = Gather <axis = -1> (pairs, zero)
  all_ups = Gather <axis = -1> (pairs, one)
  gate = Min (all_gates, most)
  ups_below = Min (all_ups, most)
  up = Max (ups_below, least)
  %(activation)s
  shifted = Add (up, shift)
  activated = Mul (shaped, shifted)
"""

_UNGATED = """
  gate = Identity (product)
  %(activation)s
  activated = Identity (shaped)
"""

_ACTIVATIONS = {
    SWISH: """
  slope = Mul (gate, factor)
  share = Sigmoid (slope)
  shaped = Mul (gate, share)
""",
    "gelu": "shaped = Gelu (gate)",
    "gelu_tanh": 'shaped = Gelu <approximate = "tanh"> (gate)',
    "relu": "shaped = Relu (gate)",
    "relu2": """
  above_zero = Relu (gate)
  shaped = Mul (above_zero, above_zero)
""",
}

_GATHERED = """
<domain: "snapexport", opset_import: ["": 24%(imports)s]>
%(name)s <alpha, beta, limit%(attributes)s> (%(inputs)s) => (output)
{
  %(constants)s
  row_axes = Constant <value_ints = [1, 3]> ()
  in_pairs = Constant <value_ints = [0, 0, -1, 2]> ()

  # [N,k,2I,H] . [N,1,H,1]
  wide = %(wide)s
  column = Unsqueeze (hidden_states, row_axes)
  products = MatMul (wide, column)
  %(product)s
  %(activation)s

  # [N,k,H,I] . [N,k,I,1]
  narrow = %(narrow)s
  activated_column = Unsqueeze (activated, last_axis)
  down_columns = MatMul (narrow, activated_column)
  %(row)s

  weight = Unsqueeze (weights, last_axis)
  weighted = Mul (row, weight)
  output = ReduceSum <keepdims = 0> (weighted, second_axis)
}
"""

_IN_BLOCKS = """
<domain: "snapexport", opset_import: ["": 24%(imports)s]>
%(name)s <alpha, beta, limit, block, blocks%(attributes)s> (%(inputs)s) => (output)
{
  %(constants)s
  b = Constant <value_ints: ints = @block> ()
  n = Constant <value_ints: ints = @blocks> ()
  in_pairs = Constant <value_ints = [0, -1, 2]> ()

  # How many choices before each one chose its expert, and how many chose each expert. Sums are in
  # fp32, exact up to 2^24, since TensorRT's CumSum takes no integers.
  choice = Reshape (index, last_axis)
  chosen = Unsqueeze (choice, second_axis)
  E = Shape <start = 0, end = 1> (gate_up)
  experts = Squeeze (E)
  expert = Range (zero, experts, one)
  is_chosen = Equal (chosen, expert)
  chose = Cast <to = 1> (is_chosen)
  sum_before = CumSum <exclusive = 1> (chose, zero)
  earlier = Cast <to = 7> (sum_before)
  sum_of_all = ReduceSum <keepdims = 0> (chose, first_axis)
  count = Cast <to = 7> (sum_of_all)

  # Each expert's blocks follow the ones of the expert before.
  rest = Sub (b, second_axis)
  filled = Add (count, rest)
  blocks_of_expert = Div (filled, b)
  blocks32 = Cast <to = 1> (blocks_of_expert)
  end32 = CumSum (blocks32, zero)
  end = Cast <to = 7> (end32)
  start = Sub (end, blocks_of_expert)
  first_place = Mul (start, b)
  places = Add (earlier, first_place)
  place_column = GatherElements <axis = 1> (places, chosen)
  place = Squeeze (place_column, second_axis)

  # The rows in blocks, [n,b,H].
  k = Shape <start = 1> (index)
  choices = Size (index)
  number = Range (zero, choices, one)
  choosing_row = Div (number, k)
  room = Mul (n, b)
  any_row = Expand (zero, room)
  row_of_place = ScatterElements <axis = 0> (any_row, place, choosing_row)
  sorted = Gather <axis = 0> (hidden_states, row_of_place)
  H = Shape <start = 1> (hidden_states)
  in_blocks = Concat <axis = 0> (n, b, H)
  blocked = Reshape (sorted, in_blocks)

  # The expert of each block. Blocks that are not in use belong to the last expert that is.
  every = Squeeze (n)
  turn = Range (zero, every, one)
  turn_column = Unsqueeze (turn, second_axis)
  is_past = LessOrEqual (end, turn_column)
  past = Cast <to = 7> (is_past)
  experts_past = ReduceSum <keepdims = 0> (past, second_axis)
  last_chosen = ReduceMax <keepdims = 0> (choice)
  owner = Min (experts_past, last_chosen)
  %(begin)s
    wide = %(wide)s
    columns = Transpose <perm = [1, 0]> (wide)
    products = MatMul (x, columns)
    %(product)s
    %(activation)s
    narrow = %(narrow)s
    down_columns = Transpose <perm = [1, 0]> (narrow)
    down_rows = MatMul (activated, down_columns)
    %(row)s
  %(end)s

  in_places = Concat <axis = 0> (last_axis, H)
  by_place = Reshape (given, in_places)
  as_chosen = Shape (index)
  place_of_choice = Reshape (place, as_chosen)
  of_choice = Gather <axis = 0> (by_place, place_of_choice)
  weight = Unsqueeze (weights, last_axis)
  weighted = Mul (of_choice, weight)
  output = ReduceSum <keepdims = 0> (weighted, second_axis)
}
"""

# BitwiseOr changes nothing (graphs/passes/base.py: on_the_host).
_LOOP = """in_use = ReduceMax <keepdims = 0> (end)
  needed = Min (in_use, every)
  turns = BitwiseOr (needed, zero)
  yes = Constant <value = bool {1}> ()

  given = Loop <body = one_block (int64 i, bool going) => (bool goes_on, row) {
    goes_on = Identity (going)
    owned_by = Gather <axis = 0> (owner, i)
    x = Gather <axis = 0> (blocked, i)"""

# The state means nothing: TensorRT's parser refuses a Scan without one, and takes only floats.
_SCAN = """owner32 = Cast <to = 1> (owner)
  unused, given = Scan <num_scan_inputs = 2,
      body = one_block (float state, float owned_by32, x) => (float same_state, row) {
    same_state = Identity (state)
    owned_by = Cast <to = 7> (owned_by32)"""

_ROUTING = ("hidden_states", "index", "weights")
_BIASES = ", gate_up_bias, down_bias"


class Experts(NamedTuple):
    """The parts that the bodies for a model's experts have.

    integers: the names of the weights' parts, in the order of the inputs, where weights have parts.
    """

    biased: bool = False
    activation: str = SWISH
    gated: bool = True
    integers: tuple[str, ...] = ()


def experts(form: str, of: Experts) -> Function:
    """One of the forms."""
    name = form
    if of.integers:
        zeros = [part.removesuffix("_zeros") for part in of.integers if part.endswith("_zeros")]
        name = "_".join(("Integer" + form, *zeros))
    if form == "ExpertsGathered":
        return Function(name, _GATHERED % (_texts(name, of, "index") | _rows_of_all(of.biased)))
    begin, end = _SCAN, "}> (factor32, owner32, blocked)"
    if form == "ExpertsInBlocks":
        begin, end = _LOOP, "}> (turns, yes)"
    of_block = _rows_of_block(of.biased) | {"begin": begin, "end": end}
    return Function(name, _IN_BLOCKS % (_texts(name, of, "owned_by") | of_block))


def _rows_of_all(biased: bool) -> dict[str, str]:
    if not biased:
        product = "product = Squeeze (products, last_axis)"
        return {"product": product, "row": "row = Squeeze (down_columns, last_axis)"}
    product = (
        "unbiased = Squeeze (products, last_axis)\n"
        "  bias = Gather <axis = 0> (gate_up_bias, index)\n"
        "  product = Add (unbiased, bias)"
    )
    row = (
        "down_rows = Squeeze (down_columns, last_axis)\n"
        "  row_bias = Gather <axis = 0> (down_bias, index)\n"
        "  row = Add (down_rows, row_bias)"
    )
    return {"product": product, "row": row}


def _rows_of_block(biased: bool) -> dict[str, str]:
    if not biased:
        return {"product": "product = Identity (products)", "row": "row = Identity (down_rows)"}
    product = (
        "bias = Gather <axis = 0> (gate_up_bias, owned_by)\n    product = Add (products, bias)"
    )
    row = "row_bias = Gather <axis = 0> (down_bias, owned_by)\n    row = Add (down_rows, row_bias)"
    return {"product": product, "row": row}


def _texts(name: str, of: Experts, chosen: str) -> dict[str, str]:
    """chosen: the value that says which experts' weights are copied."""
    activation = {"activation": _ACTIVATIONS[of.activation].strip()}
    inputs = (*_ROUTING, *(of.integers or ("gate_up", "down")))
    return {
        "name": name,
        "imports": ', "com.microsoft": 1' * bool(of.integers),
        "attributes": ", gate_up_bits, down_bits, block_size" * bool(of.integers),
        "inputs": ", ".join(inputs) + _BIASES * of.biased,
        "constants": _CONSTANTS.strip(),
        "activation": ((_GATED if of.gated else _UNGATED) % activation).strip(),
        "wide": _copy("gate_up", chosen, of.integers),
        "narrow": _copy("down", chosen, of.integers),
    }


def _copy(stack: str, chosen: str, integers: tuple[str, ...]) -> str:
    if not integers:
        return f"Gather <axis = 0> ({stack}, {chosen})"
    parts = ", ".join(part for part in integers if part.startswith(f"{stack}_"))
    attributes = f"bits: int = @{stack}_bits, block_size: int = @block_size"
    return (
        f"com.microsoft.GatherBlockQuantized <{attributes}, gather_axis = 0, quantize_axis = 2> "
        f"({stack}, {chosen}, {parts})"
    )
