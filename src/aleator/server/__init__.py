"""The HTTP server: OpenAI's, llama-server's and others' dialects, on one engine.

A dialect reads requests and writes responses; texts are made by :class:`aleator.server.service.Service` alone.
Only this package imports starlette and uvicorn (``pip install "aleator[server]"``).
"""
