"""How the vectors of an index are laid out, as a closed setting; FAISS's factory names stay behind it."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rolecast.errors import InputError

TRAINED_ON = 64  # vectors for each list of an inverted file
FEWEST = 39  # for each list, below which FAISS warns
CENTROIDS = 256  # of a byte of a product quantizer
_OF = {"hnsw": ("m", "ef_construction", "ef_search"), "ivf_flat": ("nlist", "nprobe"), "ivf_pq": ("nlist", "nprobe", "code_bytes")}


class Structure(BaseModel):
    """`flat` compares a query with every vector. HNSW (Malkov and Yashunin 2016) walks a graph, IVF looks into the lists that are nearest;
    both miss some neighbours. IVF-PQ (Jégou et al. 2011) also keeps `code_bytes` of a vector instead of its numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["flat", "hnsw", "ivf_flat", "ivf_pq"] = "flat"
    stored: Literal["float32", "float16"] = "float32"  # numbers on disk and in memory
    m: int = Field(32, ge=4, le=256)  # neighbours of a vector in the graph, twice as many in its lowest layer
    ef_construction: int = Field(80, ge=1)
    ef_search: int = Field(128, ge=1)  # candidates that a search keeps
    nlist: int | None = Field(None, ge=1)  # lists; null: 4 √vectors, but at least 39 vectors each
    nprobe: int = Field(32, ge=1)  # lists that a search looks into
    code_bytes: int | None = Field(None, ge=1)  # null: one for every eight numbers

    @model_validator(mode="after")
    def _own(self) -> Self:
        for name in sorted(self.model_fields_set - {"form", "stored", *_OF.get(self.form, ())}):
            raise ValueError(f"{self.form} has no {name}; leave it out, or take a form that has it")
        if self.form == "ivf_pq" and self.stored == "float16":
            raise ValueError("ivf_pq stores codes, not float16 numbers; leave `stored` out")
        return self

    @property
    def exact(self) -> bool:
        return self.form == "flat"

    @property
    def trained(self) -> bool:
        return self.form.startswith("ivf")

    def lists(self, vectors: int) -> int:
        return self.nlist or max(1, min(round(4 * math.sqrt(vectors)), vectors // FEWEST))

    def sample(self, vectors: int) -> int:
        """How many vectors it is trained on."""
        return min(vectors, max(TRAINED_ON * self.lists(vectors), TRAINED_ON * CENTROIDS if self.form == "ivf_pq" else 0))

    def code(self, width: int) -> int:
        """Bytes of a vector. `InputError` where they cannot be had."""
        if self.form != "ivf_pq":
            return width * (2 if self.stored == "float16" else 4)
        size = self.code_bytes or max(1, width // 8)
        if width % size:
            raise InputError(f"code_bytes = {size} does not divide the {width} numbers of a vector; take a divisor of {width}")
        return size

    def factory(self, vectors: int, width: int) -> str:
        """The name by which FAISS makes it. `InputError` if there are too few vectors for it."""
        numbers = "SQfp16" if self.stored == "float16" else "Flat"
        if self.form == "flat":
            return numbers
        if self.form == "hnsw":
            return f"HNSW{self.m},{numbers}"
        least = max(self.lists(vectors), CENTROIDS if self.form == "ivf_pq" else 1)
        if vectors < least:
            raise InputError(f"{self.form} with {self.lists(vectors)} lists takes at least {least} vectors, there are {vectors}; take flat")
        return f"IVF{self.lists(vectors)},{numbers if self.form == 'ivf_flat' else f'PQ{self.code(width)}x8'}"

    def bytes_in_memory(self, vectors: int, width: int) -> int:
        """While it is built: a flat one goes to the disk part by part, the others grow in memory (FAISS doubles what it has outgrown)."""
        if self.form == "flat":
            return 0
        if self.form == "hnsw":
            links = 4 * 2 * self.m + 4 * self.m // (self.m - 1) + 12
            return vectors * (3 * self.code(width) // 2 + links)
        return vectors * 3 * (self.code(width) + 8) // 2 + (self.sample(vectors) + self.lists(vectors)) * width * 4

    def bytes_on_disk(self, vectors: int, width: int) -> int:
        """The parts that a build keeps until it is done, and what it writes."""
        parts = vectors * width * (2 if self.stored == "float16" else 4)
        beside = {"hnsw": 4 * 2 * self.m + 24, "flat": 0}.get(self.form, 8)
        lists = self.lists(vectors) * width * 4 if self.trained else 0
        return parts + vectors * (self.code(width) + beside) + lists

    def record(self) -> dict[str, Any]:
        """What is not as ever."""
        return self.model_dump(exclude_defaults=True)


def structure_of(form: str, **given: Any) -> Structure:
    """What is None keeps its default. `InputError` names the flag that does not go with the others."""
    try:
        return Structure(form=form, **{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
        raise InputError(f"{where}{first['msg'].removeprefix('Value error, ')}") from None
