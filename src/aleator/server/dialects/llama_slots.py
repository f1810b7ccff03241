"""``/props`` and ``/slots``: facts about the server, requests under way, and texts that are saved and restored.

Slots have llama-server's numbers, but here they are names for texts, as the engine has no fixed places.  The
engine chooses the sequence of a request, which does not affect its text.  A request with ``id_slot`` starts
from what was cached under that number, and its text is cached there too: each slot is a namespace of the prompt
cache, within the client's own namespace.  The slot's text is that of its request that ended last.  This text is
saved, and a restored file replaces it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.core.errors import FileFormatError, Incompatible, ParameterError, SessionInUse
from aleator.generate.context import Context
from aleator.generate.generation import Generation, reader_of
from aleator.generate.session import (
    Rows,
    Session,
    open_session,
    restore_session,
    rows_of,
    write_session,
)
from aleator.generate.session_file import SessionFile
from aleator.models.adapters import key_of
from aleator.server.adapters import numbered
from aleator.server.auth import namespace_asked, own_namespace
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_results import settings, without_text
from aleator.server.errors import ApiError, not_built
from aleator.server.fields import Field, own_fields, text, wrong
from aleator.server.service import Service, read_body
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.generate.tiered_prefixes import TieredPrefixes

LONGEST_NAME = 200
"""Bytes of a file's name; those of its lock and of what is being written are longer."""
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f/\\:*?\"<>|\u2215\u2216\uff0e\ufeff\ufffd]+")


NOTHING = Session((), 0)
"""The text of a slot that none has."""
MOST_TEXTS = 4096
"""Texts of slots that are remembered, of all keys and salts together; the oldest goes first."""
MOST_CHOICES = 16
"""Choices of adapters whose texts a slot's erasing forgets; the latest."""


Describe = Callable[[], Mapping[str, Any]]
"""What ``/slots`` shows of a request, without its text."""


class Slots:
    """The slots of a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        path = service.options.slot_save_path
        # Of the files; None: slots are not saved
        self.folder = None if path is None else Path(path)
        if self.folder is not None and not self.folder.is_dir():
            raise ParameterError(
                f"slot_save_path={path}: there is no such directory: make it first"
            )
        # The text of each, the last of its list; before it those with other adapters, which are cached apart
        self._slots: dict[tuple[str, int], list[Session]] = {}
        self._under_way: list[tuple[int, Describe]] = []  # with the slots that requests name, or -1

    @property
    def n(self) -> int:
        """The number of slots, which is that of requests that run at the same time."""
        return self._service.engine.options.n_seq_max

    @property
    def n_ctx(self) -> int:
        """Positions of a request that gives no limit."""
        engine = self._service.engine
        return min(self._service.model.n_ctx, engine.n_ctx // engine.options.n_seq_max)

    def namespace(self, number: int, namespace: str) -> str:
        """The namespace of a slot's texts in the prompt cache."""
        self.check(number)
        return f"{namespace}/slot {number}"

    async def place(
        self, number: int, own: Mapping[str, Any], look: Callable[[str], Awaitable[int]]
    ) -> str:
        """The namespace of cached prefixes for a request: that of its slot, or of all requests without one.

        A request with ``cache_prompt=false`` erases its slot first.  Before that ``look`` is called with the
        namespace: it returns the number of the request's texts, or raises if the request is not possible there.
        Erasing only when the request starts would be after its look-ups, and once for each of its texts.
        """
        if number < 0:
            return namespace_asked(own)
        namespace = own_namespace(own["cache_salt"])
        where = self.namespace(number, namespace)
        if not own["cache_prompt"]:
            self._service.engine.check_queue(await look(where))
            await self.erase(number, namespace)
        return where

    def check(self, number: int) -> None:
        """Check that there is such a slot."""
        if not 0 <= number < self.n:
            remedy = f"give 0 to {self.n - 1}; there are as many slots as --parallel says"
            raise wrong("id_slot", number, remedy)

    @contextmanager
    def shown(self, number: int, describe: Describe) -> Iterator[None]:
        """Show a request in ``/slots`` while it runs; ``number`` is the slot that it names, or -1."""
        self._under_way.append((number, describe))
        try:
            yield
        finally:
            self._under_way.remove((number, describe))

    def ended(
        self, number: int, namespace: str, made: Generation, n_drawn: int | None = None
    ) -> None:
        """Record the text of a request that named a slot: its prompt and drawn tokens, ``n_drawn`` or all."""
        prompt, drawn = made.request.tokens, reader_of(made).completion.tokens[:n_drawn]
        adapters = made.request.options.adapters or ()
        self.remember(number, namespace, Session((*prompt, *drawn), len(prompt), adapters=adapters))

    def remember(self, number: int, namespace: str, text: Session) -> None:
        """Record the text of a slot."""
        before = self._slots.pop((namespace, number), [])
        while len(self._slots) >= MOST_TEXTS:  # whoever asks may name any salts
            del self._slots[next(iter(self._slots))]
        others = [each for each in before if each.adapters != text.adapters]
        self._slots[namespace, number] = [*others[1 - MOST_CHOICES :], text]

    def described(self) -> list[dict[str, Any]]:
        """The slots as ``/slots`` shows them; as many have a request as the engine runs.

        A request without ``id_slot``, or of another dialect, is shown in one that no request has named.
        """
        named: dict[int, Describe] = {}
        others: list[Describe] = []
        for number, describe in self._under_way:
            if number >= 0 and number not in named:
                named[number] = describe
            else:
                others.append(describe)
        running = self._service.engine.stats.running
        others += [dict] * max(0, running - len(self._under_way))  # of which nothing is known
        made: list[dict[str, Any]] = []
        for number in range(self.n):
            about = named.get(number) or (others.pop(0) if others else None)
            slot = {"id": number, "n_ctx": self.n_ctx, "speculative": False}
            slot["is_processing"] = about is not None
            made.append(slot if about is None else {**slot, **about()})
        return made

    # Files

    async def save(self, number: int, namespace: str, name: str) -> tuple[int, int]:
        """Write a slot's text to a file, with those of its keys and values that are cached.

        A file of this name is replaced once the new one is complete.  Returns the numbers of tokens and bytes.
        """
        path = self._path(number, namespace, name)
        slot = self._slots.get((namespace, number), [NOTHING])[-1]
        if not slot.tokens:
            raise ApiError(
                400, f"slot {number} has no text: no request with id_slot={number} has ended"
            )
        where = self.namespace(number, namespace) + key_of(slot.adapters)
        text = [*slot.tokens, 0]
        held, tiers = await self._cached(where, slot.tokens)
        below = None if tiers is None else await in_thread(tiers.read, text, where, held)

        def copy(context: Context, seq: int) -> Rows:
            if tiers is not None and below is not None:
                tiers.reuse(seq, text, where, below)
                context.cache.seq_rm(seq, -1, -1)
            return rows_of(context, slot.tokens, where, seq)

        rows = await asyncio.wrap_future(self._service.engine.visit(copy))
        return rows.n_tokens, await in_thread(self._write, path, slot, rows)

    async def restore(self, number: int, namespace: str, name: str) -> tuple[int, int]:
        """Give a slot the text of a file; requests continue from it as if it had just been computed.

        Returns the numbers of tokens and bytes.
        """
        path = self._path(number, namespace, name)
        model = self._service.model
        try:
            opened = partial(open_session, mapped=False)  # the engine's thread waits for no disk
            state, session = await in_thread(opened, path, len(model.vocab), model.identity)
            size = path.stat().st_size
        except FileNotFoundError:
            raise ApiError(404, f"there is no file {name!r:.200}", "filename") from None
        except (FileFormatError, Incompatible) as error:
            message = str(error).replace(str(path), name)
            raise ApiError(400, f"the slot cannot be restored: {message}", "filename") from None
        if session.forgotten:
            raise ApiError(
                400,
                "the slot cannot be restored: context shifts have changed the text of this session, and no "
                "prompt goes on from there",
                "filename",
            )
        own, before = self.namespace(number, namespace), state.header["held"]
        where = own + key_of(session.adapters)

        def put(context: Context, seq: int) -> tuple[Session, TieredPrefixes | None]:
            context.cache.forget_namespace(where)
            restored = restore_session(context, state, session, seq, own)
            return restored, model.tiers_of(context)

        restored, tiers = await asyncio.wrap_future(self._service.engine.visit(put))
        if restored.restored < before:  # the tiers have what the slot had
            raise ApiError(400, f"the slot cannot be restored: {restored.why_not}", "filename")
        if tiers is not None:
            await in_thread(tiers.forget, where)
        text = Session(session.tokens, session.n_prompt, adapters=session.adapters)
        self.remember(number, namespace, text)
        return restored.restored, size

    async def erase(self, number: int, namespace: str) -> int:
        """Forget a slot's text; returns how many of its tokens were cached."""
        self.check(number)
        held = 0
        for slot in self._slots.pop((namespace, number), [NOTHING]):
            where = self.namespace(number, namespace) + key_of(slot.adapters)
            held, tiers = await self._cached(where, slot.tokens, forget=True)
            if tiers is not None:
                await in_thread(tiers.forget, where)
        return held

    async def _cached(
        self, where: str, tokens: Sequence[int], forget: bool = False
    ) -> tuple[int, TieredPrefixes | None]:
        """How many of some tokens are in cells or lower tiers; ``forget``: the cells drop the namespace."""
        model = self._service.model

        def look(context: Context, seq: int) -> tuple[int, TieredPrefixes | None]:
            held = context.cache.match([*tokens, 0], where).length
            if forget:
                context.cache.forget_namespace(where)
            return held, model.tiers_of(context)

        return await asyncio.wrap_future(self._service.engine.visit(look))

    def _path(self, number: int, namespace: str, name: str) -> Path:
        """The file of a name, in a folder of its own for each key and salt; errors are those of save."""
        self.check(number)
        if self.folder is None:
            raise ApiError(
                501, "slots are not saved: start the server with --slot-save-path DIRECTORY"
            )
        check_name(name)
        folder = self.folder
        if namespace:
            folder /= hashlib.blake2b(namespace.encode(), digest_size=16).hexdigest()
        path = folder / name
        if path.is_symlink():
            raise wrong("filename", name, "it is a link: give another one")
        return path

    def _write(self, path: Path, session: Session, rows: Rows) -> int:
        """Write a file; returns its size."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with SessionFile(path, new=True):
                write_session(path, session, rows, self._service.model.identity)
                return path.stat().st_size
        except SessionInUse:
            raise ApiError(
                409,
                f"{path.name!r:.200} is being written by another request: ask again",
                "filename",
            ) from None


def check_name(name: str) -> None:
    """Check that a file's name is valid, and leads to no other directory."""
    strange = _NAME.fullmatch(name) is None or ".." in name or name != name.strip(" ")
    if strange or name.startswith(".") or name.endswith(".") or len(name.encode()) > LONGEST_NAME:
        raise ParameterError(
            f"filename={name!r:.80}: give the name of a file without a directory, of up to {LONGEST_NAME} "
            "bytes, such as 'talk.bin'"
        )


SALT = Field("cache_salt", text, "")
MODEL = Field("model", text)
FILE = own_fields(Field("filename", text, required=True), SALT, MODEL)
"""The body of an action with a file."""
NO_FILE = own_fields(SALT, MODEL)
"""The body of an action without one; it may be empty."""
ACTIONS = ("save", "restore", "erase")


async def props(request: Request) -> Response:
    """Facts about the server, and the defaults of a request."""
    service: Service = request.app.state.service
    slots: Slots = request.app.state.slots
    model, vocab = service.model, service.model.vocab
    params, options = service.effective()
    about = {
        "stream": False,
        "n_probs": 0,
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": numbered(service.adapters.chosen(None), service.adapters),
    }
    made: dict[str, Any] = {
        "default_generation_settings": {
            "params": without_text(settings(params, options, model.tokenizer, about)),
            "n_ctx": slots.n_ctx,
        },
        "total_slots": slots.n,
        "model_alias": service.name,
        "model_path": str(model.weights.path),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": service.options.slots,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": service.options.chat_template or vocab.chat_template or "",
        "bos_token": _text(vocab, vocab.bos),
        "eos_token": _text(vocab, vocab.eos),
        "build_info": service.fingerprint,
        "is_sleeping": False,
    }
    return JSONResponse(made)


def _text(vocab: Vocabulary, token: int | None) -> str:
    return "" if token is None or not vocab.has_text else vocab.text(token)


async def change_props(request: Request) -> Response:
    """Refused: properties are the server's options."""
    raise not_built("properties cannot be changed", "give them when the server is started")


async def slots(request: Request) -> Response:
    """The slots and the requests under way in them, without texts."""
    service: Service = request.app.state.service
    made: Slots = request.app.state.slots
    if not service.options.slots:
        raise not_built("the server was started with --no-slots")
    if request.query_params.get("fail_on_no_slot") and service.engine.stats.running >= made.n:
        raise ApiError(503, "no slot is free")
    return JSONResponse(made.described())


async def act(request: Request) -> Response:
    """Save, restore or erase a slot."""
    made: Slots = request.app.state.slots
    if made.folder is None:
        raise not_built(
            "slots are not saved, restored or erased",
            "start the server with --slot-save-path DIRECTORY",
        )
    word = request.path_params["id_slot"]
    if not re.fullmatch("[0-9]{1,9}", word):
        raise wrong("id_slot", word, f"give a number, 0 to {made.n - 1}")
    number = int(word)
    action = request.query_params.get("action", "")
    if action not in ACTIONS:
        raise wrong("action", action, f"give {', '.join(ACTIONS)}")
    if action == "erase":
        body = (await read_body(request, NO_FILE))[1] if await request.body() else NO_FILE.read({})
        namespace = own_namespace(body.own["cache_salt"])
        return JSONResponse({"id_slot": number, "n_erased": await made.erase(number, namespace)})
    _, body = await read_body(request, FILE)
    name, namespace = body.own["filename"], own_namespace(body.own["cache_salt"])
    if action == "save":
        work, n_tokens, n_bytes, took = made.save, "n_saved", "n_written", "save_ms"
    else:
        work, n_tokens, n_bytes, took = made.restore, "n_restored", "n_read", "restore_ms"
    started = perf_counter()
    tokens, size = await work(number, namespace, name)
    counts, times = {n_tokens: tokens, n_bytes: size}, {took: 1e3 * (perf_counter() - started)}
    return JSONResponse({"id_slot": number, "filename": name, **counts, "timings": times})


ROUTES = [
    Route("/props", props),
    Route("/props", change_props, methods=["POST"]),
    Route("/slots", slots),
    Route("/slots/{id_slot}", act, methods=["POST"]),
]
