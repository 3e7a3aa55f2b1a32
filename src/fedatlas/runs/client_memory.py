"""The memory of all clients: in RAM up to a limit; beyond it, the least recently used go to files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping

from fedatlas.parts.types import Memory
from fedatlas.runs.files import Entry
from fedatlas.runs.tensor_files import Place, TensorFiles


class ClientMemories(MutableMapping[int, Memory]):
    """Client memory by client id, of which at most ``limit`` bytes are held in RAM; None holds all.

    A memory that goes to disk and comes back has the same bits. Its file is the one a checkpoint would write, so a
    checkpoint only has to name it.
    """

    def __init__(
        self, files: TensorFiles | None = None, *, limit: int | None = None, place: Place = lambda tensor: tensor
    ) -> None:
        assert files is not None or limit is None, "a limit needs files to write to"
        self.files, self.limit, self.place = files, limit, place
        self.stamp = 1
        """Part of the names of files to come; later than that of any file which a checkpoint names."""
        self.held_bytes = 0
        self._held: OrderedDict[int, Memory] = OrderedDict()
        self._written: dict[int, Entry] = {}
        self._unsettled: set[int] = set()
        self.obsolete: set[str] = set()
        """Files whose memory was replaced since; a checkpoint on disk may still name them."""

    @classmethod
    def open(
        cls, files: TensorFiles, entries: Mapping[int, Entry], *, stamp: int, limit: int | None, place: Place
    ) -> ClientMemories:
        """Return the memory in a checkpoint: read up to the limit; beyond it, files are only checked."""
        memories = cls(files, limit=limit, place=place)
        memories.stamp = stamp
        memories._written = dict(entries)
        for client, entry in entries.items():
            if limit is None or memories.held_bytes + entry.bytes <= limit:
                memories[client]
            else:
                files.check(entry)
        return memories

    def __getitem__(self, client: int) -> Memory:
        if client in self._held:
            self._held.move_to_end(client)
            return self._held[client]
        memory = self._read(client)
        self._hold(client, memory)
        return memory

    def __setitem__(self, client: int, memory: Memory) -> None:
        self._forget(client)
        self._hold(client, memory)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._forget(client)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held.keys() | self._written.keys()))

    def __len__(self) -> int:
        return len(self._held.keys() | self._written.keys())

    def __contains__(self, client: object) -> bool:
        return client in self._held or client in self._written

    def __ior__(self, other: Mapping[int, Memory]) -> ClientMemories:
        self.update(other)
        return self

    def entry(self, client: int) -> Entry:
        """Return the file that holds a client's memory, written now if it was only in RAM.

        It need not be on the disk yet: see ``take_unsettled``.
        """
        assert self.files is not None
        if client not in self._written:
            stem = f"client-{client:06d}-{self.stamp:06d}"
            self._written[client] = entry = self.files.write(stem, self._held[client], durable=False)
            self._unsettled.add(client)
            self.obsolete.discard(entry.file)
        return self._written[client]

    def take_unsettled(self) -> list[Entry]:
        """Return the files that may not be on the disk yet; the caller waits for them."""
        entries = [self._written[client] for client in sorted(self._unsettled)]
        self._unsettled.clear()
        return entries

    def _read(self, client: int) -> Memory:
        entry = self._written[client]
        assert self.files is not None
        return self.files.read(entry, self.place)

    def _hold(self, client: int, memory: Memory) -> None:
        self._held[client] = memory
        self.held_bytes += num_bytes(memory)
        while self.limit is not None and self.held_bytes > self.limit and self._held:
            oldest = next(iter(self._held))
            self.entry(oldest)
            self.held_bytes -= num_bytes(self._held.pop(oldest))

    def _forget(self, client: int) -> None:
        if client in self._held:
            self.held_bytes -= num_bytes(self._held.pop(client))
        self._unsettled.discard(client)
        if (entry := self._written.pop(client, None)) is not None:
            self.obsolete.add(entry.file)


def num_bytes(memory: Memory) -> int:
    """Return the size of a client's memory."""
    return sum(tensor.numel() * tensor.element_size() for tensors in memory.values() for tensor in tensors.values())
