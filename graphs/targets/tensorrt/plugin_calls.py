"""Marks the calls that a plugin may take.

Since 10.15 TensorRT's parser prefers a function's body to a plugin of its name. It takes the plugin
if the call has the attribute plugin_namespace and the parser's flag ENABLE_PLUGIN_OVERRIDE is set
(`snapexport engine --plugins` sets it). ONNX requires that the function declares the attribute too.
"""

import onnx

from snapexport.contract.names import DOMAIN

PLUGINS = ("SnapKVSelect", "SnapStreamGather")
"""The functions of which plugins/ has a fused kernel."""

_NAMESPACE = "plugin_namespace"


def allow_plugins(model: onnx.ModelProto) -> None:
    """Give every call of PLUGINS the namespace of our plugins, which is empty."""
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in PLUGINS:
            node.attribute.append(onnx.helper.make_attribute(_NAMESPACE, ""))
    for function in model.functions:
        if function.name in PLUGINS:
            function.attribute.append(_NAMESPACE)
