"""OpenAI's HTTP interface in front of a Triton server that serves a build.

```
body ──> fields, bodies ──> reader ──> together ──> triton ~~> Triton
         what may be asked  tokens     n answers    gRPC         │
answer <── shapes, events <───────────────┴─────── pieces <──────┘
```

`app` joins them into routes, `front` runs the app and ends it in order. Needs starlette, uvicorn
and tritonclient; loads no engine.
"""
