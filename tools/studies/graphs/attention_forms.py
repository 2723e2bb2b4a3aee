"""Measures the scratch memory of prefill's attention in several forms, by the real builder.

PYTHONPATH=. python -m tools.studies.graphs.attention_forms    writes the table of
attention_forms.md

One layer: a chunk of 512 tokens, 131,072 cache slots, 32/8 heads of 128, fp16.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import parser

from tests.rtx.library import Answer, ask_kernels

PAGE = Path(__file__).with_suffix(".md")

SIGNATURE = """
<ir_version: 11, opset_import: ["" : 24]>
layer (float16[1,512,64] x, float16[64,1024] w_key, float16[64,1024] w_value,
       float16[4096,64] w_out, float16[1,8,131072,128] past_key, float16[1,8,131072,128] past_value,
       int64[1] slot, int64[1] valid, %(given)s)
   => (float16[1,512,64] y, float16[1,8,131072,128] key, float16[1,8,131072,128] value %(made)s)
{
"""
CACHES = """
   kv_heads = Constant<value_ints=[1,512,8,128]>()
   k_flat = MatMul(x, w_key)
   k_rows = Reshape(k_flat, kv_heads)
   k_new = Transpose<perm=[0,2,1,3]>(k_rows)
   key = TensorScatter<axis=-2, mode="linear">(past_key, k_new, slot)
   v_flat = MatMul(x, w_value)
   v_rows = Reshape(v_flat, kv_heads)
   v_new = Transpose<perm=[0,2,1,3]>(v_rows)
   value = TensorScatter<axis=-2, mode="linear">(past_value, v_new, slot)
"""
QUERY = """
   heads = Constant<value_ints=[1,512,32,128]>()
   q_flat = MatMul(x, w_query)
   q_rows = Reshape(q_flat, heads)
   query = Transpose<perm=[0,2,1,3]>(q_rows)
"""
ROWS = """
   zero = Constant<value_int=0>()
   one = Constant<value_int=1>()
   many = Constant<value_int=131072>()
   back = Constant<value_int=-512>()
   axes = Constant<value_ints=[1,2,3]>()
   last_axis = Constant<value_ints=[1]>()
   slots = Range(zero, many, one)
   offsets = Range(back, zero, one)
   column = Unsqueeze(offsets, last_axis)
   end = Unsqueeze(valid, axes)
   last = Add(end, column)
"""
MASK = ROWS + "   mask = LessOrEqual(slots, last)\n"
OUT = """
   flat = Constant<value_ints=[1,512,4096]>()
   turned = Transpose<perm=[0,2,1,3]>(attended)
   joined = Reshape(turned, flat)
   projected = MatMul(joined, w_out)
   y = Add(x, projected)
}
"""
FOLD = """
   q_shape = Constant<value_ints=[8,4,512,128]>()
   kv_shape = Constant<value_ints=[8,1,131072,128]>()
   whole = Constant<value_ints=[1,32,512,128]>()
   q = Reshape(query, q_shape)
   k = Reshape(key, kv_shape)
   v = Reshape(value, kv_shape)
"""
BY_KV_HEAD = FOLD + "   a = Attention<scale=1.0>(q, k, v%s)\n   attended = Reshape(a, whole)\n"
FOLDED_ROWS = """
   tall = Concat<axis=2>(last, last, last, last)
   mask = LessOrEqual(slots, tall)
   q_shape = Constant<value_ints=[1,8,2048,128]>()
   whole = Constant<value_ints=[1,32,512,128]>()
   q = Reshape(query, q_shape)
   a = Attention<scale=1.0>(q, key, value, mask)
   attended = Reshape(a, whole)
"""
EACH_HEAD = (
    f"""{FOLD}
   one_head = Constant<value_ints=[1,8,512,128]>()
   q0, q1, q2, q3 = Split<axis=1, num_outputs=4>(q)
"""
    + "".join(
        f"   r{n} = Reshape(q{n}, one_head)\n"
        f"   b{n} = Attention<scale=1.0>(r{n}, key, value, mask)\n"
        f"   a{n} = Transpose<perm=[1,0,2,3]>(b{n})\n"
        for n in range(4)
    )
    + "   a = Concat<axis=1>(a0, a1, a2, a3)\n   attended = Reshape(a, whole)\n"
)
COMPOSED = """
   folded = Constant<value_ints=[1,8,2048,128]>()
   spread = Constant<value_ints=[1,32,512,131072]>()
   shares = Constant<value_ints=[1,8,2048,131072]>()
   whole = Constant<value_ints=[1,32,512,128]>()
   hidden = Constant<value_float=-3e38>()
   q = Reshape(query, folded)
   k = Transpose<perm=[0,1,3,2]>(key)
   product = MatMul(q, k)
   scores = Reshape(product, spread)
   wide = Cast<to=1>(scores)
   masked = Where(mask, wide, hidden)
   softmax = Softmax<axis=-1>(masked)
   rounded = Cast<to=10>(softmax)
   weights = Reshape(rounded, shares)
   a = MatMul(weights, value)
   attended = Reshape(a, whole)
"""
PLAIN = "   attended = Attention<scale=1.0>(query, key, value, mask)\n"
DIRECT = "   attended = Attention<scale=0.25>(query, key, value, mask)\n"
W_QUERY = "float16[64,4096] w_query"


def in_turn(groups: int) -> str:
    """Groups of KV heads one after the other: a group's heads are gathered by the last's result."""
    heads = 8 // groups
    text = f"{FOLD}   axis1 = Constant<value_ints=[1]>()\n   huge = Constant<value_float=1e30>()\n"
    text += "   all_axes = Constant<value_ints=[0,1,2,3]>()\n   wait0 = Constant<value_int=0>()\n"
    text += f"   q_group = Constant<value_ints=[{heads},4,512,128]>()\n"
    text += f"   kv_group = Constant<value_ints=[{heads},1,131072,128]>()\n"
    for n in range(groups):
        text += f"""
   own{n} = Constant<value_ints={[*range(n * heads, (n + 1) * heads)]}>()
   places{n} = Add(own{n}, wait{n})
   kg{n} = Gather<axis=1>(key, places{n})
   vg{n} = Gather<axis=1>(value, places{n})
   k{n} = Reshape(kg{n}, kv_group)
   v{n} = Reshape(vg{n}, kv_group)
   qg{n} = Gather<axis=0>(q, own{n})
   a{n} = Attention<scale=1.0>(qg{n}, k{n}, v{n}, mask)
   top{n} = ReduceMax<keepdims=0>(a{n}, all_axes)
   wide{n} = Cast<to=1>(top{n})
   never{n} = Greater(wide{n}, huge)
   wait{n + 1} = Cast<to=7>(never{n})
"""
    results = ", ".join(f"a{n}" for n in range(groups))
    return f"{text}   a = Concat<axis=0>({results})\n   attended = Reshape(a, whole)\n"


@dataclass(frozen=True)
class Form:
    """given, made: further inputs and outputs of the layer. body: from query to `attended`."""

    name: str
    body: str
    given: str = W_QUERY
    made: str = ""

    def model(self) -> onnx.ModelProto:
        ends = {"given": self.given, "made": self.made}
        query = QUERY if W_QUERY in self.given else ""
        return parser.parse_model(SIGNATURE % ends + CACHES + query + self.body + OUT)


QUERIES = "float16[1,32,512,128]"
BIAS = f"{W_QUERY}, float16[1,1,512,131072] bias"
FORMS = (
    Form("query heads that share a KV head, as ONNX has them", MASK + PLAIN),
    Form(
        "KV heads in the place of the batch: the form of our graphs", MASK + BY_KV_HEAD % ", mask"
    ),
    Form("the same without a mask", BY_KV_HEAD % ""),
    Form("the same, an fp16 mask as an input (134 MB)", BY_KV_HEAD % ", bias", BIAS),
    Form("query heads folded into rows", ROWS + FOLDED_ROWS),
    Form("one attention for each of the 4 query heads", MASK + EACH_HEAD),
    Form("2 groups of KV heads, gathered one after the other", MASK + in_turn(2)),
    Form("4 groups of KV heads, gathered one after the other", MASK + in_turn(4)),
    Form("as ONNX has them, queries are an input", MASK + DIRECT, f"{QUERIES} query"),
    Form(
        "as ONNX has them, queries are an output too",
        f"{MASK}   shown = Identity(query)\n{DIRECT.replace('query', 'shown')}",
        made=f", {QUERIES} shown",
    ),
    Form("composed of single operators", MASK + COMPOSED),
)


def copies(answer: Answer) -> int:
    """Kernels that read a whole cache and are not attention: they copy it."""
    caches = {"past_key", "past_value", "key", "value"}
    found = 0
    for name, inputs, outputs in answer.kernels:
        read, written = ({tensor for tensor, _ in ends} & caches for ends in (inputs, outputs))
        in_place = read <= written
        found += bool(read) and not in_place and "mha" not in name
    return found


def lines() -> Iterator[str]:
    """The table in Markdown."""
    yield "| form | scratch memory | attention kernels | kernels that copy caches |"
    yield "|---|---|---|---|"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "form.onnx"
        for form in FORMS:
            onnx.save(form.model(), path)
            answer = ask_kernels(path)
            assert answer.accepted, (form.name, answer.errors)
            fused = sum("mha" in name for name, *_ in answer.kernels)
            scratch = f"{(answer.scratch or 0) / 1e6:,.0f} MB"
            yield f"| {form.name} | {scratch} | {fused} | {copies(answer)} |"


def with_table(page: str, table: list[str]) -> str:
    """The page with `table` in the place of its own."""
    before, _, rest = page.partition("\n|")
    after = rest[rest.rindex("|\n") + 1 :]
    return before + "\n" + "\n".join(table) + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), list(lines())))
