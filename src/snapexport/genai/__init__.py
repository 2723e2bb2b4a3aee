"""Makes a folder of a build that onnxruntime-genai runs by itself, without this package.

`folder.write_folder` is the way in. `graph.py` joins the build's decode graph and its graph of
blocks, `caches.py` says how genai holds their caches, and `functions.py` cuts prompts and refuses
rewinds. `config.py` and `tokens.py` are for what genai reads beside the graph. Knows no cache
method: a graph that takes or gives more than keys and values is refused.
"""
