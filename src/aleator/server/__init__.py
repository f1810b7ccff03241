"""The HTTP server: the dialects of OpenAI, llama-server and others, on one engine.

A dialect reads requests and writes responses; only :class:`aleator.server.service.Service` generates texts.
Only this package imports starlette and uvicorn (``pip install "aleator[server]"``).
"""
