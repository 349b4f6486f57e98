"""Packets simulated a second time, from the rules alone: every step looks through all that is outstanding.

Windows, bytes that wait and packets on the way are kept nowhere: each is worked out from what has happened so far.
"""

from typing import Any

from helpers.scripts import benchmark

mixed = benchmark("packets.simulator").mixed


def plain(fabric: Any, messages: Any, repair: Any, seed: int) -> dict[str, list[int]]:
    """Return what the simulator's `Outcome` has, as lists."""
    return _World(fabric, messages, repair, seed).run()


class _World:
    def __init__(self, fabric: Any, messages: Any, repair: Any, seed: int) -> None:
        self.fabric, self.messages, self.repair, self.seed = fabric, messages, repair, seed
        self.log: list[list[tuple[str, int, int]]] = [[] for _ in messages]  # (what, when, when sent), per message
        self.copies: list[dict[str, Any]] = []  # outstanding transmissions
        self.history: list[dict[str, Any]] = []  # all of them
        self.begun: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.free: dict[tuple[Any, ...], int] = {}

    def run(self) -> dict[str, list[int]]:
        while due := self.due():
            now, _, subject, act = min(due, key=lambda each: each[:3])
            act(now, subject)
        everything = range(len(self.messages))
        classes = range(len(self.fabric.thresholds))
        arrived = [copy for copy in self.history if copy["state"] == "arrived"]
        assert len({(copy["m"], copy["k"]) for copy in arrived}) == len(arrived), "a packet arrived twice"
        there = sum(copy["size"] for copy in arrived)
        return {
            "begun": [self.begun[m] for m in everything],
            "done": [self.done[m] for m in everything],
            "used": [self.used[m] for m in everything],
            "sent": [sum(copy["size"] for copy in self.history)],
            "arrived": [there],
            "left_out": [sum(message.size for message in self.messages) - there],
            "dropped": [
                sum(copy["size"] for copy in self.history if copy["state"] == "dropped" and self.level(copy) == c)
                for c in classes
            ],
        }

    def level(self, copy: dict[str, Any]) -> int:
        return int(self.messages[copy["m"]].priority)

    def due(self) -> list[tuple[int, int, Any, Any]]:
        found: list[tuple[int, int, Any, Any]] = []
        for copy in self.copies:
            key = (copy["m"], copy["k"])
            if copy["state"] == "moving":
                found.append((copy["when"], 0, key, self.move))
            elif copy["state"] == "arrived":
                found.append((copy["when"] + 4 * self.fabric.delay, 1, key, self.heard))
            elif copy["state"] == "dropped":
                since = copy["when"] if self.repair.fast else copy["sent"]
                found.append((max(since + self.repair.wait, copy["when"]), 2, key, self.heard))
        for port in {copy["at"] for copy in self.copies if copy["state"] == "waiting"}:
            found.append((self.free[port], 6, port, self.serve))
        for m, message in enumerate(self.messages):
            if m in self.done and m not in self.stopped:
                found.append((self.done[m] + 4 * self.fabric.delay, 3, (m,), lambda _, who: self.stopped.add(who[0])))
            if m not in self.begun and all(before in self.done for before in message.after):
                at = max([message.ready, *(self.done[before] for before in message.after)])
                found.append((at, 4, (m,), self.begin))
            if m in self.begun and m not in self.done and message.deadline is not None:
                found.append((self.begun[m] + message.deadline, 5, (m,), lambda now, who: self.go_on(now, who[0])))
        return found

    def one(self, key: tuple[int, int]) -> dict[str, Any]:
        (copy,) = [copy for copy in self.copies if (copy["m"], copy["k"]) == key]
        return copy

    def begin(self, now: int, who: tuple[int]) -> None:
        self.begun[who[0]] = now
        self.fill(now, who[0])

    def packets(self, m: int) -> list[int]:
        whole, rest = divmod(self.messages[m].size, self.fabric.packet)
        return [self.fabric.packet] * whole + [rest] * (rest > 0)

    def most(self) -> int:
        one = -(-self.fabric.packet * 10**9 // self.fabric.rate)
        return -(-(4 * (one + self.fabric.delay) + 4 * self.fabric.delay) // one)

    def window(self, m: int) -> int:
        size, credit, cut = self.most(), 0, -1
        for what, when, sent in self.log[m]:
            if what == "arrived":
                credit += 1
                if credit >= size:
                    size, credit = min(size + 1, self.most()), 0
            elif sent > cut:
                size, credit, cut = max(size // 2, 1) if self.repair.fast else 1, 0, when
        return size

    def fill(self, now: int, m: int) -> None:
        sizes, message = self.packets(m), self.messages[m]
        while m not in self.stopped and sum(copy["m"] == m for copy in self.copies) < self.window(m):
            mine = [copy for copy in self.history if copy["m"] == m]
            fresh = [k for k in range(len(sizes)) if k not in {copy["k"] for copy in mine}]
            lost = sorted(
                (copy for copy in mine if copy.get("noticed") is not None and not copy["resent"]),
                key=lambda copy: copy["noticed"],
            )
            if not fresh and not lost:
                return
            k = fresh[0] if fresh else lost[0]["k"]
            if not fresh:
                lost[0]["resent"] = True
            ways = self.ways(message.source, message.target)
            chosen = (m, len(mine)) if self.fabric.sprayed else (message.source, message.target)
            copy = {"m": m, "k": k, "size": sizes[k], "sent": now, "when": now, "hop": 0, "state": "moving"}
            copy["path"] = ways[mixed(self.seed, *chosen) % len(ways)]
            self.copies.append(copy)
            self.history.append(copy)
            self.move(now, (m, k))

    def ways(self, source: int, target: int) -> list[list[tuple[Any, ...]]]:
        a, b = source // self.fabric.hosts, target // self.fabric.hosts
        if a == b:
            return [[("card", source), ("last", target)]]
        spines = range(self.fabric.spines)
        return [[("card", source), ("up", a, s), ("down", s, b), ("last", target)] for s in spines]

    def move(self, now: int, key: tuple[int, int]) -> None:
        copy = self.one(key)
        copy["when"] = now
        if copy["hop"] == len(copy["path"]):
            copy["state"] = "arrived"
            message, mine = self.messages[key[0]], [c for c in self.history if c["m"] == key[0]]
            have, count = sum(c["state"] == "arrived" for c in mine), len(self.packets(key[0]))
            if have == count - int(count * message.tolerated):
                self.go_on(now, key[0])
            return
        port = copy["at"] = copy["path"][copy["hop"]]
        there = [c["size"] for c in self.copies if c["state"] == "waiting" and c["at"] == port]
        if not there and self.free.get(port, 0) <= now:
            self.leave(now, copy)
        elif port[0] != "card" and sum(there) + copy["size"] > self.fabric.thresholds[self.level(copy)]:
            copy["state"] = "dropped"
        else:
            copy["turn"] = 1 + max(other.get("turn", 0) for other in self.history)
            copy["state"] = "waiting"

    def leave(self, now: int, copy: dict[str, Any]) -> None:
        self.free[copy["at"]] = now + -(-copy["size"] * 10**9 // self.fabric.rate)
        copy.update(state="moving", when=self.free[copy["at"]] + self.fabric.delay, hop=copy["hop"] + 1)

    def serve(self, now: int, port: tuple[Any, ...]) -> None:
        there = [copy for copy in self.copies if copy["state"] == "waiting" and copy["at"] == port]
        self.leave(now, min(there, key=lambda copy: (self.level(copy), copy["turn"])))

    def go_on(self, now: int, m: int) -> None:
        if m not in self.done:
            self.done[m] = now
            mine = [copy for copy in self.history if copy["m"] == m and copy["state"] == "arrived"]
            self.used[m] = sum(copy["size"] for copy in mine)

    def heard(self, now: int, key: tuple[int, int]) -> None:
        copy = self.one(key)
        self.copies.remove(copy)
        self.log[key[0]].append((copy["state"], now, copy["sent"]))
        if copy["state"] == "dropped":
            copy["noticed"], copy["resent"] = sum(len(log) for log in self.log), False
        self.fill(now, key[0])
