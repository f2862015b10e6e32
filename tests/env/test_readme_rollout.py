from pathlib import Path

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.scripted.policies import play_scripted
from env.phone.tasks import generate_tasks
from env.play.demonstrations import pieces_of

README = Path(__file__).parents[2] / "README.md"
PAGE = Path(__file__).parents[2] / "docs" / "phone.md"
STYLE = CompactStyle()


def test_the_rollout_in_readme_is_what_the_environment_says() -> None:
    made = generate_tasks(
        num_companies=100,
        num_train=500,
        num_val=10,
        num_test=10,
        level_shares={1: 0.4, 2: 0.3, 3: 0.3},
        seed=0,
    )
    task = next(task for task in made if (task.split, task.index) == ("train", 40))
    env = PhoneEnv()
    first, results, verdict = play_scripted(task, "prior_only", seed=0, env=env)
    feedback = env.feedback()
    assert not verdict.success
    assert feedback is not None
    second, again, verdict = play_scripted(task, "prior_only", seed=0, earlier=[first])
    assert verdict.success
    attempts = [
        pieces_of(STYLE, task.prompt, [], first, results),
        pieces_of(STYLE, task.prompt, [STYLE.attempt_line(first, feedback.text)], second, again),
    ]
    shown = ["".join(text for text, _ in pieces).replace(STYLE.stop_token, "") for pieces in attempts]
    page = PAGE.read_text(encoding="utf-8")
    for dialogue in shown:
        assert f"```text\n{dialogue}\n```" in page
    assert f"```text\n{shown[0]}\n```" in README.read_text(encoding="utf-8")
