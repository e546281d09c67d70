"""Tree of thought: branches propose, each is scored, the best ones go on, and a vote decides."""

from collections import Counter

import umbel
from umbel.frontend_dsl import State

WIDTH = 6  # ideas
KEPT = 2  # ideas that are worked out
VOTERS = 5


def propose(s: State) -> list[State]:
    """WIDTH ideas, the likeliest to be practical first."""
    forks = s.fork(WIDTH)
    for seed, idea in enumerate(forks):
        with idea.assistant():
            idea += "You could" + umbel.gen("idea", max_tokens=30, stop=[".", "\n"], seed=seed)
        idea += umbel.user("Is this idea practical? Answer yes or no.")
        idea += umbel.assistant(umbel.select("practical", ["Yes", "No"]))
    forks.join()
    return sorted(forks, key=lambda b: b.meta("practical").distribution["Yes"], reverse=True)


@umbel.program(temperature=0.8, top_p=0.95)
def think(s: State, problem: str) -> str:
    s += umbel.system("You give short, practical advice.")
    s += umbel.user(problem)
    kept = propose(s)[:KEPT]
    for seed, idea in enumerate(kept):
        idea += umbel.user("What should I do first?")
        with idea.assistant():
            idea += "First, you should" + umbel.gen(
                "step", max_tokens=40, stop=[".", "\n"], seed=seed
            )
    labels = [f" {chr(ord('A') + i)}" for i in range(KEPT)]
    plans = [f"{a[1:]}:{b['idea']}\n" for a, b in zip(labels, kept, strict=True)]
    s += umbel.user("Which plan is better?\n", *plans)
    voters = s.fork(VOTERS)
    for seed, voter in enumerate(voters):
        with voter.assistant():
            voter += "The better plan is"
            voter += umbel.select("vote", labels, method="constrained", temperature=1.0, seed=seed)
    votes = Counter(voter["vote"] for voter in voters)
    winner = kept[labels.index(votes.most_common(1)[0][0])]
    return f"You could{winner['idea']}.\nFirst, you should{winner['step']}.\n{dict(votes)}"


def main() -> None:
    with umbel.Engine() as engine:
        state = think.run(engine, problem="How can I sleep better at night?")
    print(state.result)


if __name__ == "__main__":
    main()
