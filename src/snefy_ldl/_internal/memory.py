"""Every memory budget of the library, in numbers held at a time, so that a machine's size is weighed in one place.

The largest feature stands here, too, since files and rows are held against it.
"""

from __future__ import annotations

from collections import defaultdict

#: Work arrays hold at most this many numbers at a time (64 MiB of float64).
CHUNK_ELEMENTS = 1 << 23
#: Work arrays that are swept again and again hold this many, so that a processor's cache keeps them (4 MiB).
CACHE_ELEMENTS = 1 << 19
#: Where six arrays are swept together each holds this many, so that they stay close to the processor (1.5 MiB in all).
SWEEP_ELEMENTS = 1 << 15
#: What a GPU takes at a time (1 GiB of float64).
GPU_ELEMENTS = 1 << 27
#: Rows a prediction handles at a time; a million rows need no more memory than this many.
PREDICTION_ROWS = 8192
#: Up to this many rows a prediction uses one thread: more would wait for each other longer than they work.
SMALL_BATCH = 256
#: Rows a forward pass sees at a time when it only evaluates.
EVALUATION_ROWS = 4096
#: Most rows of a pool of unlabelled rows that are held at one time.
POOL_ROWS = 1 << 14
#: Most numbers in a dense block of such a pool, for pools with very many features.
POOL_ELEMENTS = 1 << 24
#: Most numbers that rows of a pool which are compared with each other may hold together.
COMPARED_ELEMENTS = 1 << 26
#: Items whose mixture weights are held at a time while the worth of a vote on each is worked out.
VALUED_ROWS = 256
#: Tables of more numbers than this are held in float32, which is what networks compute in (64 MiB of it).
SINGLE_NUMBERS = 1 << 24
#: Draws that are asked for at once hold at most this many numbers (64 GiB of float64).
DRAWN_NUMBERS = 1 << 33
#: Features beyond this leave a network that computes in float32 no room; no sensible unit gives such numbers.
LARGEST_FEATURE = 1e30
#: Sparse features are made dense for training when they take at most this many bytes as float32.
DENSE_BYTES = 1 << 31
#: Tensors for a backbone of the user's own are kept on the device whole up to this many bytes; else batches go there.
RESIDENT_BYTES = 1 << 33
#: Rows that such a backbone sees at a time when it only evaluates or predicts.
BACKBONE_ROWS = 512
#: Rows of a stream from which a fit starts, and the most that are held at one time.
STREAM_ROWS = 4096
#: ... and the bytes at which a chunk of them ends, however few rows it holds.
STREAM_BYTES = 1 << 28

#: Numbers that tables of shares, kept for the next question about the same model, may hold (128 MiB of float64).
KEPT_TABLE_NUMBERS = 1 << 24
#: Below this many evaluations a question about one share goes straight to the incomplete Beta function.
DIRECT_EVALUATIONS = 200_000

#: Numbers that a work array holds at a time, by the type of its device: what a CPU's cache keeps, or enough for a GPU.
BLOCK_ELEMENTS: dict[str, int] = defaultdict(lambda: GPU_ELEMENTS, cpu=CACHE_ELEMENTS)
