"""
Native code of aleator: samplers, cache bookkeeping, layers. Import it through the package.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self

import numpy
from numpy.typing import NDArray


class CacheMemory:
    """One layer's keys or values, its memory borrowed."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], type: str, n_cells: int, heads: int, dim: int, by_channel: bool = False, rotation: int = 0) -> None:
        """
        data: uint8, [n_cells, heads, dim], or by_channel [heads, dim, n_cells], of type 'F32', 'F16', 'BF16', or one in blocks of 32 (dim then a multiple of 32, not by_channel); rotation: heads are stored rotated by a Hadamard matrix in blocks of so many. ValueError when sizes disagree.
        """

def attend(pool: ThreadPool, keys: CacheMemory, values: CacheMemory, scale: float, q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], seen: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], list_start: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_list: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_count: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_deltas: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, seen_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, seen_sinks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, frequencies: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], interleaved: bool, raw: bool, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], softcap: float = 0.0, slopes: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, seen_positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    Attention of queries q float32 [T, heads, dim] into out float32 [T, heads, dim of the values], as DecoderStep does it; for the lists see DecoderStep.run. raw: keys are stored unrotated, and rotated by seen_deltas, their positions then. softcap: scores s become softcap * tanh(s / softcap); slopes float32 [heads]: the slope times seen_positions of the listed cell less positions[t] is added to a score; sinks float32 [heads]: scores that no value goes with.
    """

class Candidates:
    def __init__(self, logits: Annotated[NDArray, dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def __len__(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def temperature(self) -> float:
        """What the logits are still to be divided by."""

    @property
    def selected(self) -> int | None: ...

    @selected.setter
    def selected(self, token: int | None) -> None: ...

    @property
    def ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

    @logits.setter
    def logits(self, arg: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> None: ...

    @property
    def entropy(self) -> float:
        """Of the distribution, in bits."""

    @property
    def weights(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    @property
    def p(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        The probabilities that Softmax noted, not made anew since; 0 where it noted none.
        """

    def state(self) -> tuple:
        """
        Token ids, logits, the temperature they still are to be divided by, and the mass that Softmax saw.
        """

    def keep(self, ids: Sequence[int]) -> None:
        """Keep these tokens; the others are no candidates any more."""

def fail_allocation(n: int) -> None:
    """
    For tests: the cells' n-th allocation from now in this thread fails; -1: none does.
    """

class Cells:
    """
    What each cell of a KV cache holds: position, owners, pending shift.

    Ranges of positions are [p0, p1); p0 < 0 means 0 and p1 < 0 means infinity. An id out of range raises ValueError.
    """

    def __init__(self, size: int, n_seq_max: int = 1, streams: bool = False, llama_2024: bool = False, extras: bool = False) -> None:
        """
        streams: every sequence has size / n_seq_max cells to itself. llama_2024: the head follows llama.cpp's rules of 2024. extras: every cell also holds y, x and token.
        """

    @property
    def size(self) -> int: ...

    @property
    def n_seq_max(self) -> int: ...

    @property
    def n_streams(self) -> int: ...

    @property
    def words(self) -> int:
        """64-bit words of a row of owners."""

    @property
    def used(self) -> int:
        """Cells that hold a token."""

    @property
    def head(self) -> int:
        """
        Where the next search starts; may equal size. With streams, the first one's.
        """

    @property
    def heads(self) -> list[int]:
        """The head of every stream."""

    @property
    def top(self) -> int:
        """Index of the highest used cell + 1."""

    @property
    def has_shift(self) -> bool:
        """Does a stored key wait for a rotation?"""

    @property
    def version(self) -> int:
        """Changes with every change."""

    @property
    def shared_cells(self) -> int:
        """Cells with several owners."""

    @property
    def positions(self) -> Annotated[NDArray[numpy.int32], dict(writable=False)]:
        """int32 [size], read-only view; -1 is an empty cell."""

    @property
    def extras(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None, None), writable=False)] | None:
        """
        int32 [size, 3], read-only view: y, x and token (-1: an embedding) of each used cell; of an empty one anything. None without extras.
        """

    @property
    def shifts(self) -> NDArray[numpy.int32]:
        """
        int32 [size], a new array: how far each stored key must still be rotated.
        """

    @property
    def owners(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None, None))]:
        """
        uint64 [size, words], a new array; bit s of a row is sequence s. For one cell owners_of costs less.
        """

    def owners_of(self, cell: int) -> list[int]:
        """Ascending ids of the sequences that own a cell."""

    def census(self) -> tuple:
        """
        Each cell's lowest owner (-1: none) and how many it has, int32 [size] each.
        """

    def find(self, n: int, contiguous: bool = False, stream: int = 0) -> NDArray[numpy.int64]:
        """
        The first n free cells in ring order from head, int64, or with contiguous the first n in a row, which do not wrap; empty if there are not that many.
        """

    def place(self, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], owners: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], contiguous: bool = False, extras: Annotated[NDArray[numpy.int32], dict(shape=(None, 3), order='C', device='cpu', writable=False)] | None = None) -> NDArray[numpy.int64]:
        """
        Give the cells that find names positions (int32 [n]), owners (uint64 [n, words]) and, if they have them, extras (int32 [n, 3]: y, x, token); return them.
        """

    def put(self, cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], owners: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], extras: Annotated[NDArray[numpy.int32], dict(shape=(None, 3), order='C', device='cpu', writable=False)] | None = None) -> None:
        """Give these free cells (int64 [n]) positions, owners and extras."""

    def take_in_ring(self, n: int, window: int, keep: int = 0, stream: int = 0, chunked: bool = False) -> NDArray[numpy.int64]:
        """
        As find, where cells count as free, too, whose only owner's next token does not see them in its window, nor as one of the first keep positions; their owners leave them. chunked: as for before_window. llama.cpp's rule.
        """

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None: ...

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None: ...

    def seq_keep(self, seq: int) -> None: ...

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None: ...

    def seq_pos_min(self, seq: int) -> int:
        """-1 if the sequence is empty."""

    def seq_pos_max(self, seq: int) -> int:
        """-1 if the sequence is empty."""

    def seq_cells(self, seq: int) -> int:
        """How many cells the sequence owns."""

    def seq_runs(self, seq: int, p0: int = -1, p1: int = -1) -> list[tuple[int, int, int]]:
        """
        The sequence's cells in a range, in order of position, as runs (position, cell, length).
        """

    def seq_cell_list(self, seq: int, p0: int = -1, p1: int = -1) -> NDArray[numpy.int64]:
        """The sequence's cells in a range, in order of position, int64."""

    def shared(self, seq: int, p0: int = -1, p1: int = -1) -> NDArray[numpy.int64]:
        """The sequence's cells in a range that others own too, int64."""

    def sharers(self, seq: int, p0: int = -1, p1: int = -1) -> list[int]:
        """
        Ascending ids of the other sequences that own any of its cells in a range.
        """

    def follow_head(self, dst: int, src: int) -> None:
        """With streams: dst's head is where src's is in its own share."""

    def same_cells(self, a: int, b: int) -> bool:
        """Do a and b own the same cells?"""

    def duplicate(self, source: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seq: int, leave: bool) -> None:
        """
        Free cells target become what source are, owned by seq alone; with leave seq leaves source. The stored rows are copied by others.
        """

    def clear(self) -> None: ...

    def shifted(self) -> NDArray[numpy.int64]:
        """Cells whose stored key waits for a rotation, int64."""

    def clear_shifts(self) -> None: ...

    def pending(self) -> tuple:
        """
        The shifted cells, int64 [n], and how far each key must be rotated, int32 [n].
        """

    def defrag_plan(self, max_moves: int = -1) -> list[tuple[int, int, int]]:
        """
        Moves (from, to, length) of the last cells into the holes before them; negative: any number.
        """

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """
        Make moves of used cells to free ones. The stored rows are copied by others.
        """

    def begin(self) -> None:
        """Start a journal of all changes; may be nested."""

    def commit(self) -> None:
        """Keep the changes since the last begin."""

    def rollback(self) -> None:
        """
        Restore the state at the last begin; after its commit too, until the next change.
        """

    def used_before(self, cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.int64]:
        """
        Those of the cells, ascending, that have held something else since the outermost begin that is not committed: what is stored there is needed if that is rolled back.
        """

    def map(self) -> str:
        """
        One character per cell below top: '.' free, a digit its owner ('+' above 9), 'M' several.
        """

    def check(self) -> None:
        """Raise RuntimeError if the indexes and the cells disagree."""

class Sampler:
    """A built-in sampler, to be put into a Chain."""

class Chain:
    def __init__(self, samplers: Sequence[Sampler], completion: int) -> None: ...

    def sample(self, logits: Annotated[NDArray, dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def apply(self, candidates: Candidates) -> None: ...

    def apply_one(self, candidates: Candidates, index: int) -> None: ...

    def accept(self, token: int, generated: bool) -> None: ...

    def accept_many(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], generated: bool) -> None: ...

    def write_state(self, users: bool) -> bytes: ...

    def read_state(self, state: bytes) -> None: ...

    def replace_with(self, other: Chain) -> None: ...

    def reset_perf(self) -> None: ...

    def free_scratch(self) -> None: ...

    def reset(self) -> None: ...

    def restart(self) -> None: ...

    def clone(self) -> Chain: ...

    @property
    def samplers(self) -> list[Sampler]: ...

    def read(self, read: object) -> object:
        """Call a function while no other thread uses the chain."""

    @property
    def history(self) -> list[int]: ...

    @property
    def generated(self) -> list[int]:
        """For each token of the history, 1 if it was generated."""

    @property
    def n_sampled(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def insert(self, index: int, sampler: Sampler) -> None: ...

    def remove(self, index: int) -> None: ...

    def set_ordinals(self, ordinals: Sequence[int]) -> None: ...

    def rollback(self, n: int) -> None: ...

    def part(self, first: int, count: int) -> Chain:
        """
        A chain with copies of some samplers, in the same place of the same text.
        """

    def present(self) -> Chain:
        """
        A chain with copies of the samplers that act now, in the same place of the same text.
        """

    @property
    def position(self) -> int: ...

    @position.setter
    def position(self, arg: int, /) -> None: ...

class Constraint:
    """
    Which token may come next, given those accepted.  One thread at a time; clones are independent.
    """

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""

    @property
    def waiting(self) -> bool:
        """
        Whether this is a lazy grammar before its trigger: everything is allowed.
        """

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole sentence: the generation may end."""

    def mask(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """
        Tokens allowed next: uint32 words, bit ``id % 32`` of word ``id // 32``.
        """

    def allows(self, token: int) -> bool:
        """Whether one token is allowed next: cheaper than a mask."""

    def accept(self, token: int) -> None:
        """
        Add a token.  Raises ConstraintError, nothing changed, if it is not allowed.
        """

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` tokens."""

    def reset(self) -> None:
        """Back to the beginning."""

    def jump_forward(self) -> bytes:
        """Bytes that the grammar forces next; none where it leaves a choice."""

    def clone(self) -> Constraint:
        """An independent copy that goes on from here."""

class DecoderStep:
    """A decoder, run for a micro-batch at a time on the processor."""

    def __init__(self, decoder: object) -> None:
        """
        See DecoderShape (native/layers/decoder_step.hpp), whose fields are attributes of decoder; matrices are lists of StoredWeight. output None: hidden states after the last norm in place of logits, and without that norm what the next layer takes. gate: 'silu', 'silu_clamped', 'gelu', 'gelu_exact', 'relu_squared', or 'gelu_rounded' as llama.cpp does; layer_norm: norms are layer norms, their weights followed by as many biases; head_norm: '', 'head', 'rotated head', 'each' or 'all'. Here and below: ValueError, naming the tensor, when shapes disagree.
        """

    def add_attention(self, layer: object, keys: CacheMemory, values: CacheMemory | None) -> None:
        """
        Appends a layer with attention, see Attention (models/layers/parts.py). values: None where the cache holds compressed keys.
        """

    def add_state(self, kind: str, layer: object, conv: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], state: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], beside: bool) -> None:
        """
        Appends a layer that keeps a state, see models/layers/recurrent_parts.py; beside: the last layer's attention has this beside it, and what both give is added. kind: 'state space', 'heads', 'short convolution' or 'delta net'. Rows of the cache: float32 [rows, channels, width - 1] of the convolution, [rows, channels, numbers] of the state.
        """

    def add_feed_forward(self, layer: object) -> None:
        """
        Appends a layer of nothing but a feed-forward part, see FeedForwardAlone (models/layers/recurrent_parts.py).
        """

    def set_per_layer(self, table: StoredMatrix, embeddings: object) -> None:
        """
        Tokens have embeddings for each layer: rows of table [n_vocab, layers * width], see LayerEmbeddings (models/layers/parts.py).
        """

    def add_per_layer(self, part: object) -> None:
        """
        The last layer adds its part of them, see LayerEmbedding (models/layers/parts.py).
        """

    def adapt(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], adapter: int, a: StoredMatrix, b: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], type: str, factor: float, grows: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Products with the matrix whose bytes are data get B (scale * (A x)) for tokens with this adapter: see LowRank (native/layers/adapters.hpp). type: B's.
        """

    def adapt_embedding(self, adapter: int, a: StoredMatrix, b: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], type: str, factor: float) -> None:
        """The same of the tokens' embeddings; a: [n_vocab, rank]."""

    def run(self, pool: ThreadPool, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, embeddings: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], list_start: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_list: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_count: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_deltas: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, out_rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], window: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None] | None = None, recurrent: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, seen_positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, query_scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, adapted: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, taps: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]] | None = None) -> None:
        """
        T tokens: see MicroBatch (native/layers/decoder_step.hpp), Seen (attention_step.hpp) and Runs (state_kernels.hpp). adapted: starts, adapters and scales of Adapted (adapters.hpp). ids int64, or embeddings and all other numbers float32; positions, lists of cells, seen_list and seen_deltas int32; the rest int64. window: for window layers cells to seen_deltas, seen_first, and seen_sinks or None. recurrent: starts, sources, order and stores. taps: numbers of layers int64 [n], and float32 [T, n, n_embd] for what these take, or the last one gives. ValueError, with nothing changed, for an index out of range.
        """

class DraftHead:
    """Guesses the next tokens of texts."""

    def __init__(self, step: object, parts: object, places: int) -> None:
        """
        step: a DecoderStep of one layer with attention, whose cells are shared out among so many places of texts. parts: what DraftHead.parts (models/draft_head.py) says. ValueError when sizes disagree.
        """

    def guess(self, pool: ThreadPool, texts: Sequence[tuple[int, int, Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]], Sequence[int], int, float, Sequence[float], object]], window: int) -> list[tuple[list[int], list[int]]]:
        """
        For each text its guesses and their kinds. A text is its place; the position of its first row, before which its cells have all rows; hidden states [n, layers, n_embd] in pieces, and the tokens that follow them; how many guesses at most; how probable it must at least be that all are right, by the rates of the kinds, which follow; and the chain, of which a copy draws. A row sees the last `window` ones.
        """

DRAFT_KINDS: int = 10

def xxh64_blocks(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], block: int, seed: int = 0) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
    """
    XXH64 of each block of this many bytes; the last may be shorter, and one that is empty stands for no data.
    """

def find_nonfinite(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: int, stride: int, width: int, mask: int) -> int:
    """
    Index of the first block of `stride` bytes in `data` (uint8 [n]) whose word of `width` (1, 2 or 4) bytes at `offset` has all bits of `mask`, an exponent field, set; -1 if none has.
    """

class TokenTrie:
    """A vocabulary as grammars read it: built once, then shared."""

    def __init__(self, pieces: list, eog: Sequence[int]) -> None: ...

    @property
    def bytes(self) -> int: ...

GRAMMAR_ELEMENTS: int = 1000000

def compile_gbnf(text: str, root: str, trie: TokenTrie, token_of: Callable, trigger_patterns: Sequence[str], trigger_tokens: Sequence[int]) -> Constraint: ...

def gguf_skip_strings(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: int, count: int) -> tuple:
    """
    Walk over `count` GGUF strings at `offset` of `data` (uint8 [n]); (strings walked, offset after).
    """

def gguf_read_strings(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: int, count: int) -> tuple:
    """
    Decode `count` GGUF strings at `offset` of `data` (uint8 [n]); (list of str, offset after).
    """

class StringArray:
    """
    GGUF strings where their file has them; ends before the first that does not fit or is not UTF-8.
    """

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: int, count: int) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> str: ...

    @property
    def broken(self) -> int:
        """Offset of the string that was looked at last."""

    @property
    def has_empty(self) -> bool:
        """Whether one of them is empty."""

    def find(self, text: str) -> int:
        """Number of the last string that is `text`; -1 if none is."""

    def first_twice(self) -> tuple[int, int] | None:
        """
        Numbers of the first string that occurs again, and of its last occurrence; None: all differ.
        """

def codebook(type: str) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)]:
    """
    A codebook of ggml's IQ types, uint8 [entries, elements]: magnitudes; of IQ1_S and IQ1_M 8 * v + 9 of the values v -1, 0 and 1.
    """

class InputSquares:
    """Sums of squares of what matrices are multiplied with."""

    def __init__(self) -> None: ...

    def watch(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], sums: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        data: uint8, the bytes of n stacked matrices where a decoder reads them.  From start() to stop() the squares of their inputs are added to sums float64 [n, in], and the number of inputs to rows int64 [n].  ValueError when sizes disagree.
        """

    def start(self) -> None:
        """ValueError while another one collects; no step may be running."""

    def stop(self) -> None:
        """No step may be running."""

class Journal:
    """
    One undo log for everything that a cache can change.

    Its frames nest. Each of its methods is atomic to signals and to trace functions. A second thread waits until the first has closed its frames.
    """

    def __init__(self) -> None: ...

    @property
    def lock_timeout(self) -> float | None:
        """
        Seconds that a second thread waits before CacheBusy is raised; None: without end.
        """

    @lock_timeout.setter
    def lock_timeout(self, arg: float | None, /) -> None: ...

    def enlist(self, part: Cells | States) -> None:
        """
        Let a part's changes be taken back with the others. RuntimeError within a frame.
        """

    @property
    def depth(self) -> int:
        """How many frames are open."""

    @property
    def frame(self) -> int:
        """A number of the innermost frame that no other had; 0: none is open."""

    @property
    def current(self) -> object | None:
        """The innermost block under `with`, or None."""

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """
        Call a function in a frame of its own: what it changed stays if it returns, and is taken back exactly if it raises anything at all.
        """

    def attempt(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As run, but what it changed is taken back even if it returns."""

    def set(self, target: object, name: str, value: object) -> None:
        """Set an attribute."""

    def put(self, target: dict[Any, Any], key: object, value: object) -> None:
        """Set an entry of a dictionary."""

    def drop(self, target: dict[Any, Any], key: object) -> None:
        """Remove an entry of a dictionary, if it is there."""

    def undo(self, function: Callable[..., object], *args: object) -> None:
        """
        Have a call made if the innermost frame is taken back. To be said before the change; the call may be made twice. Outside of frames nothing is taken back.
        """

    def after_commit(self, function: Callable[..., object], *args: object) -> None:
        """
        Have a call made once the outermost frame is committed, or now outside of frames; it may be made twice.
        """

class Transaction:
    """
    A block under `with` whose changes are taken back exactly if it raises anything at all.

    Once it is begun, the method _entered is called.
    """

    def __init__(self, journal: Journal) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *args: object) -> None: ...

    def cancel(self) -> None:
        """
        Take everything back at the end of the block, although nothing was raised.
        """

class StoredMatrix:
    """A weight matrix [out, in] in its stored type, its memory borrowed."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], type: str, n_out: int, n_in: int, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, order: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        data: uint8, all of the matrix; type: a name of ggml's, such as 'F32' or 'Q4_K'; bias: float32 [out]; order: int32 [in], the element of x that each column of a matrix in blocks meets in products. ValueError when sizes disagree.
        """

    @property
    def shape(self) -> tuple: ...

def linear(pool: ThreadPool, matrix: StoredMatrix, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    y[tokens, out] = x[tokens, in] W^T + bias, float32. Equal bits for any number of threads and tokens, and every instruction set.
    """

def read_rows(pool: ThreadPool, matrix: StoredMatrix, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    y[i] = row rows[i] of the matrix as float32; rows int64 [n], y [n, in]. ValueError for a row out of range.
    """

class LlamaSampler:
    """A built-in sampler, to be put into a LlamaChain."""

class LlamaConstraintSampler(LlamaSampler):
    def __init__(self, constraint: Constraint, ends: Sequence[int]) -> None: ...

    @property
    def constrained(self) -> Constrained: ...

class LlamaChain:
    def __init__(self, samplers: Sequence[LlamaSampler], grammar: LlamaConstraintSampler | None) -> None: ...

    def sample(self, logits: Annotated[NDArray, dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def apply(self, candidates: LlamaCandidates) -> None: ...

    def apply_one(self, candidates: LlamaCandidates, index: int) -> None: ...

    def accept(self, token: int, generated: bool) -> None: ...

    def accept_many(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], generated: bool) -> None: ...

    def write_state(self, users: bool) -> bytes: ...

    def read_state(self, state: bytes) -> None: ...

    def replace_with(self, other: LlamaChain) -> None: ...

    def reset_perf(self) -> None: ...

    def free_scratch(self) -> None: ...

    def reset(self) -> None: ...

    def restart(self) -> None: ...

    def clone(self) -> LlamaChain: ...

    @property
    def samplers(self) -> list[LlamaSampler]: ...

    def read(self, read: object) -> object:
        """Call a function while no other thread uses the chain."""

    @property
    def history(self) -> list[int]: ...

    @property
    def generated(self) -> list[int]:
        """For each token of the history, 1 if it was generated."""

    @property
    def n_sampled(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def apply_grammar(self, candidates: LlamaCandidates) -> None:
        """Mask what the grammar forbids, unless it waits."""

    def rejects(self, candidates: LlamaCandidates) -> bool:
        """Whether the grammar forbids the token selected."""

    @property
    def grammar(self) -> LlamaConstraintSampler: ...

    def rollback(self, n: int, replay: bool) -> None: ...

    @property
    def position(self) -> int: ...

class LlamaAdaptiveP(LlamaSampler):
    def __init__(self, adaptive_target: float, adaptive_decay: float, seed: int) -> None: ...

    @property
    def average(self) -> float: ...

class LlamaCandidates:
    def __init__(self, candidates: Candidates) -> None: ...

    def __len__(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def sorted(self) -> bool: ...

    @property
    def selected(self) -> int | None: ...

    @selected.setter
    def selected(self, token: int | None) -> None: ...

    @property
    def ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

    @logits.setter
    def logits(self, arg: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> None: ...

    @property
    def p(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """llama.cpp's field p, as the samplers left it."""

    @property
    def probs(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

    def keep(self, ids: Sequence[int]) -> None:
        """Keep these tokens; the others are no candidates any more."""

def LlamaDist(seed: int) -> LlamaSampler: ...

def LlamaDRY(dry_multiplier: float, dry_base: float, dry_allowed_length: int, dry_penalty_last_n: int, breakers: Sequence[Sequence[int]]) -> LlamaSampler: ...

def LlamaGreedy() -> LlamaSampler: ...

def LlamaInfill(vocabulary: InfillVocabulary) -> LlamaSampler: ...

def LlamaLogitBias(biases: Sequence[tuple[int, float]]) -> LlamaSampler: ...

def LlamaMinP(min_p: float, min_keep: int) -> LlamaSampler: ...

class LlamaMirostat(LlamaSampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, mirostat_m: int, seed: int) -> None: ...

    @property
    def mu(self) -> float: ...

class LlamaMirostatV2(LlamaSampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, seed: int) -> None: ...

    @property
    def mu(self) -> float: ...

def LlamaPenalties(penalty_last_n: int, repetition_penalty: float, frequency_penalty: float, presence_penalty: float) -> LlamaSampler: ...

def LlamaSoftmax() -> LlamaSampler: ...

def LlamaTailFree(tfs_z: float, min_keep: int) -> LlamaSampler: ...

def LlamaTemperature(temperature: float, dynatemp_range: float, dynatemp_exponent: float) -> LlamaSampler: ...

def LlamaTopK(top_k: int) -> LlamaSampler: ...

def LlamaTopNSigma(top_n_sigma: float) -> LlamaSampler: ...

def LlamaTopP(top_p: float, min_keep: int) -> LlamaSampler: ...

def LlamaTypicalP(typical_p: float, min_keep: int) -> LlamaSampler: ...

class LlamaUserSampler(LlamaSampler):
    def __init__(self, adapter: object) -> None: ...

    @property
    def adapter(self) -> object: ...

def LlamaXTC(xtc_probability: float, xtc_threshold: float, min_keep: int, seed: int) -> LlamaSampler: ...

class BytePairEncoder:
    """
    Byte-level BPE: `tokens` and `merges` are strings of a file, byte_texts the 256 texts of bytes; with whole_words a word that is a token is not merged. characters: what is merged first are characters, of which those without a token become bytes; a word of newlines that is a token is not merged.
    """

    def __init__(self, tokens: StringArray, merges: StringArray, byte_texts: Sequence[str], whole_words: bool, characters: bool = False) -> None: ...

    @property
    def bad_merge(self) -> int:
        """
        Number of the first merge that is not two tokens with a space between whose join is a token; -1: all are.
        """

    def encode(self, words: list) -> list[int]:
        """Token ids of words, which are not merged across."""

class SentencePieceEncoder:
    """
    SentencePiece's BPE: of neighbours that make a token, the best-scored first; what has no token becomes bytes, or `unknown` where one of these has none.
    """

    def __init__(self, tokens: StringArray, scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], byte_texts: Sequence[str], unknown: int | None, space: str) -> None: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

class PageGuard:
    """
    While it lives, zeros take the place of pages of a mapped file that cannot be read; elsewhere these end the process.
    """

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """data: the whole mapping, from a page's start on."""

    @property
    def lost(self) -> bool:
        """Whether pages were lost."""

class ThreadPool:
    """
    A small team of threads for native layers; idle ones sleep. Survives a fork.
    """

    def __init__(self, threads: int) -> None:
        """threads: 1 to 256, the calling thread included. ValueError outside."""

    @property
    def threads(self) -> int: ...

def store_rows(pool: ThreadPool, type: str, rotation: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], data: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')], cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    data[cells[i]] = row i of x float32 [n, width], first rotated by a Hadamard matrix in blocks of `rotation` elements (0: not), rounded to type 'F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1' or 'IQ4_NL'; data uint8 [n_cells, row bytes], cells int64 [n].  ValueError, with nothing changed, when sizes disagree or a cell is out of range.
    """

def load_rows(pool: ThreadPool, type: str, rotation: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    The other way: y[i] float32 [n, width] = row cells[i] of data, rotated back.
    """

def quantise_rows(pool: ThreadPool, type: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, data: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    data uint8 [rows, row bytes] = x float32 [rows, n], finite, stored as type 'F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q2_K' to 'Q6_K' or 'MXFP4', with the bytes of llama.cpp's quantiser; importance float32 [n]: what an error in each column counts, or None.  ValueError, with nothing changed, when sizes disagree.
    """

def philox4x32(counter: Sequence[int], key: int) -> list[int]:
    """
    Philox4x32-10: four 32-bit words from a counter of four and a 64-bit key.
    """

class Mt19937:
    """
    MT19937 with a 32-bit seed and the uniforms that llama.cpp draws from it.
    """

    def __init__(self, seed: int) -> None: ...

    def reseed(self, seed: int) -> None: ...

    def word(self) -> int:
        """The next 32-bit word."""

    def uniform_double(self) -> float:
        """Two words, the low half first; in [0, 1)."""

    def uniform_float(self) -> float:
        """One word; in [0, 1)."""

def route(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], chosen: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], scores: str, normalised: bool, scale: float, n_groups: int, n_groups_used: int, n_group_best: int, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    Which experts tokens go through: logits float32 [T, experts], overwritten; writes chosen int32 and weights float32 [T, n_used], best first.
    """

def rotary_angles(frequencies: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], magnitude: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Writes magnitude times cosine and sine of position * frequency: frequencies float64 [pairs], positions int32 [n], out float32 [n, pairs, 2].
    """

def rotate_heads(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], angles: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], interleaved: bool) -> None:
    """
    Rotates float32 [n, heads, dim] in place by angles float32 [n, pairs, 2]: channels (2i, 2i + 1) if interleaved, else (i, i + pairs).
    """

def rms_norm(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> None:
    """
    Divides every row of float32 [n, width] by its root mean square, in place, times weight.
    """

def layer_norm(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> None:
    """
    Every row of float32 [n, width] less its mean, over its standard deviation, in place, times weight[:width] plus weight[width:].
    """

def activate(name: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    gate = f(gate) * up in place, float32 [n]; f is 'silu', 'silu_clamped', 'gelu', 'gelu_exact', 'gelu_rounded' or 'relu_squared'.
    """

def soften_logits(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], cap: float) -> None:
    """x = cap * tanh(x / cap) in place, float32."""

def hadamard(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], block: int) -> None:
    """
    Turns every block of float32 [n, width] in place by a Hadamard matrix that is its own inverse.
    """

def sample_batch(chains: Sequence[Chain], logits: Annotated[NDArray, dict(shape=(None, None), device='cpu', writable=False)], pool: ThreadPool) -> list[int]: ...

class AdaptiveP(Sampler):
    def __init__(self, adaptive_target: float, adaptive_decay: float, seed: int, ordinal: int) -> None: ...

    @property
    def average(self) -> float: ...

    @property
    def state_history(self) -> list[list[float]]: ...

def BadWords(sequences: Sequence[Sequence[int]]) -> Sampler: ...

class Constrained:
    """A constraint as a chain holds it."""

    @property
    def constraint(self) -> Constraint: ...

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing but its end may follow."""

    def count(self) -> int:
        """Tokens that the mask allows."""

class PyConstraint(Constraint):
    def __init__(self, adapter: object) -> None: ...

class ConstraintSampler(Sampler):
    def __init__(self, constraint: Constraint, ends: Sequence[int]) -> None: ...

    @property
    def constrained(self) -> Constrained: ...

def Dist(seed: int, ordinal: int, draw: int, key: int, ngram: int) -> Sampler: ...

def SynthIDDist(seed: int, ordinal: int, keys: Sequence[int], ngram: int) -> Sampler: ...

def TwisterDist(seed: int) -> Sampler: ...

def DRY(dry_multiplier: float, dry_base: float, dry_allowed_length: int, dry_penalty_last_n: int, breakers: Sequence[Sequence[int]]) -> Sampler: ...

def EpsilonCutoff(epsilon_cutoff: float, min_keep: int) -> Sampler: ...

def EtaCutoff(eta_cutoff: float, min_keep: int) -> Sampler: ...

def Greedy() -> Sampler: ...

class InfillVocabulary:
    def __init__(self, pieces: list, eog: Sequence[int], end_of_turn: int) -> None: ...

def Infill(vocabulary: InfillVocabulary) -> Sampler: ...

def LogitBias(biases: Sequence[tuple[int, float]]) -> Sampler: ...

def MinK(min_k_tau: float) -> Sampler: ...

def MinP(min_p: float, min_keep: int, full: bool) -> Sampler: ...

def MinTokens(min_tokens: int, end_tokens: Sequence[int]) -> Sampler: ...

class Mirostat(Sampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, mirostat_m: int, seed: int, ordinal: int) -> None: ...

    @property
    def mu(self) -> float: ...

    @property
    def state_history(self) -> list[list[float]]: ...

class MirostatV2(Sampler):
    def __init__(self, mirostat_tau: float, mirostat_eta: float, seed: int, ordinal: int) -> None: ...

    @property
    def mu(self) -> float: ...

    @property
    def state_history(self) -> list[list[float]]: ...

def NoRepeatNgram(no_repeat_ngram_size: int) -> Sampler: ...

def PLess(on: bool, normalized: bool) -> Sampler: ...

def Penalties(penalty_last_n: int, repetition_penalty: float, frequency_penalty: float, presence_penalty: float, prompt_repeats: bool, prompt_counts: bool, per_occurrence: bool) -> Sampler: ...

class TokenTexts:
    """The texts of a vocabulary's tokens."""

    def __init__(self, texts: bytes, ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class PhaseMarks:
    """What ends one phase of a text and begins another."""

    def __init__(self, next: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], phase: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], start: int, texts: TokenTexts | None) -> None: ...

class Phases(Sampler):
    def __init__(self, chains: Sequence[Sequence[Sampler]], marks: PhaseMarks, own: bool) -> None: ...

    @property
    def present(self) -> int:
        """The phase that draws the next token."""

    @property
    def before(self) -> list[int]:
        """For each accepted token the phase before it."""

def Smoothing(square: float, cube: float) -> Sampler: ...

def Softmax() -> Sampler: ...

def TailFree(tfs_z: float, min_keep: int) -> Sampler: ...

def Temperature(temperature: float, dynatemp_range: float, dynatemp_exponent: float) -> Sampler: ...

def TokenMask(words: Sequence[int] | None) -> Sampler: ...

def TopA(top_a: float) -> Sampler: ...

def TopH(top_h: float) -> Sampler: ...

def TopK(top_k: int) -> Sampler: ...

def LimitedTopK(top_k: int, limit: int) -> Sampler: ...

def TopNSigma(top_n_sigma: float) -> Sampler: ...

def TopP(top_p: float, min_keep: int, full: bool) -> Sampler: ...

def TypicalP(typical_p: float, min_keep: int) -> Sampler: ...

class UserSampler(Sampler):
    def __init__(self, adapter: object) -> None: ...

    @property
    def adapter(self) -> object: ...

def XTC(xtc_probability: float, xtc_threshold: float, min_keep: int, seed: int, ordinal: int) -> Sampler: ...

def seen_cells(cells: Cells, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seqs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], causal: bool, key_positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, coordinates: Annotated[NDArray[numpy.int32], dict(shape=(None, 2), order='C', device='cpu', writable=False)] | None = None) -> tuple:
    """
    (seen, list_start, seen_list, seen_count, seen_deltas) of the tokens at positions[t] in sequence seqs[t], as DecoderStep.run wants them: for each sequence the cells that it owns, in order of position, of which a token sees those not after it (causal) or all. coordinates (int32 [tokens, 2]: y, x) orders the cells of one position. seen_deltas: positions minus key_positions of the listed cells; None if all 0.
    """

def before_window(cells: Cells, seen: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], list_start: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seen_list: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window: int, chunked: bool = False) -> NDArray[numpy.int64]:
    """
    int64 [tokens]: of the list of each token at positions[t], as seen_cells gave it, how many cells at its beginning lie below positions[t] - window + 1, or chunked: below the multiple of window that is next at or below positions[t].
    """

class States:
    """
    Whose states the rows of a recurrent pool hold.

    A sequence's history is a tuple of (row, position), oldest first. Rows are free when no history has them, and none that an open frame would bring back.
    """

    def __init__(self, n_rows: int) -> None: ...

    @property
    def n_rows(self) -> int:
        """Rows, free ones included."""

    @property
    def version(self) -> int:
        """Changes with every change."""

    def history(self, seq: int) -> tuple[tuple[int, int], ...]:
        """A sequence's states, oldest first; () if it is empty."""

    def newest(self, seq: int) -> tuple[int, int] | None:
        """The last of them; None if it is empty."""

    def book(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Every sequence that is not empty, with its history; a copy."""

    def free_rows(self, n: int) -> list[int]:
        """The lowest n free rows, or fewer; they stay free."""

    def held(self, first: int) -> int:
        """
        How many rows sequences from first on hold, or would if the open frames were taken back.
        """

    def grow(self, n: int) -> None:
        """Add so many rows, for good."""

    def change(self, histories: dict[int, tuple[tuple[int, int], ...]]) -> None:
        """
        Replace histories, all or none. ValueError for a row that there is not.
        """

    def check(self) -> None:
        """Raise RuntimeError if rows are lost or held twice."""

class StoredRows:
    """What the cells of a cache store, in every layer."""

    def __init__(self, layers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]]) -> None:
        """layers: uint8 [cells, bytes] each, shared, not copied."""

    def take(self, cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint8]:
        """
        A copy of the rows of some cells (int64 [n]), uint8. ValueError for a cell out of range.
        """

    def put(self, cells: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], taken: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int = 0) -> None:
        """
        Store what take gave of some cells, the first of them and those after the last left out.
        """

    @property
    def row_bytes(self) -> int:
        """Bytes of one cell, all layers together."""

def top_k_top_p_sample(logits: Annotated[NDArray, dict(shape=(None, None), device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), device='cpu', writable=False)], top_p: Annotated[NDArray, dict(shape=(None,), device='cpu', writable=False)], q: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)] | None, min_p: Annotated[NDArray, dict(shape=(None,), device='cpu', writable=False)] | None, seeds: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None, eps: float, limit: int, is_logits: bool, indices: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')] | None, select: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, listed: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')] | None, probs: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, pool: ThreadPool | None) -> None: ...

def top_k_top_p_sample_paths(reset: bool) -> list[int]: ...

def isa() -> str:
    """
    Instruction set in use: 'base'; 'v3' (AVX2) or 'v4' (AVX-512) on x86-64; 'dotprod' on aarch64. The environment variable ALEATOR_ISA forces a lower one.
    """
