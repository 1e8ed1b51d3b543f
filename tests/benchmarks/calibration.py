"""How often the gate is wrong: simulated gates with known truth through the real judge.

    python tests/benchmarks/calibration.py [--gates 400] [--requests 400] [--boot-sd 0.02 0.03 0.05] [--json FILE]

Boot sd 2, 3 and 5 %, request sd 15 %, drift 0.5 % a leg, three timing rules, margin 5 %, 6 boot pairs, fixed seeds. Two more
worlds at 3 % are not what the judge assumes, and are reported whatever they are: boots whose luck lasts (AR(1), 0.5), and a
first boot of all that is 5 % slower. Exits 1
when at 3 % more than 2 % of the A/A gates fail, fewer than 70 % of them pass, more than 5 % of the gates with a true slow-down
at the margin pass, or fewer than 90 % of those with a 10 % slow-down fail.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace
from simulate import Tally, World, play

MUST = {"A/A fail": 0.02, "A/A pass": 0.70, "at the margin pass": 0.05, "slow fail": 0.90}
"""At a boot sd of 3 %."""


def line(tally: Tally) -> str:
    """One row of the table."""
    shares = "  ".join(f"{name} {tally.share(name):6.1%}" for name in ("pass", "inconclusive", "fail", "control failed"))
    world = tally.world
    kind = f"  memory {world.memory:g}" * bool(world.memory) + f"  first boot {world.first_boot:+.0%}" * bool(world.first_boot)
    alone = "  ".join(f"{name} {n / tally.gates:6.1%}" for name, n in tally.pairs_only.items())
    return (
        f"boot sd {world.boot_sd:4.0%}{kind}  true effect {world.effect:+4.0%}  {shares}  "
        f"too noisy {tally.too_noisy}  median smallest margin {tally.smallest_margin_p50:.1%}\n"
        f"    by the log ratios of pairs alone: {alone}"
    )


def kept(tally: Tally) -> bool:
    """Whether the limits hold."""
    effect = tally.world.effect
    if not effect:
        return tally.share("fail") <= MUST["A/A fail"] and tally.share("pass") >= MUST["A/A pass"]
    if effect <= tally.world.margin:
        return tally.share("pass") <= MUST["at the margin pass"]
    return tally.share("fail") >= MUST["slow fail"]


def main() -> int:
    """Play the gates and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=400)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--boot-sd", type=float, nargs="+", default=[0.02, 0.03, 0.05])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    assumed = World(requests=asked.requests, pairs=asked.pairs)
    worlds = [replace(assumed, boot_sd=sd, effect=effect) for sd in asked.boot_sd for effect in (0.0, 0.05, 0.10)]
    limited = [world for world in worlds if world.boot_sd == 0.03]
    worlds += [replace(assumed, effect=e, **odd) for odd in ({"memory": 0.5}, {"first_boot": 0.05}) for e in (0.0, 0.10)]
    tallies = []
    for world in worlds:
        start = time.perf_counter()
        tallies.append(play(world, asked.gates, seed=1))
        print(f"{line(tallies[-1])}  ({time.perf_counter() - start:.0f} s)", flush=True)
    ok = all(kept(tally) for tally in tallies if tally.world in limited)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(tallies), indent=1))
    print("calibrated" if ok else "not calibrated: see the limits in this file")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
