from holdfast_agent.evidence.stack_dump import Frame, Thread, render


def test_the_text_begins_with_the_main_thread_and_keeps_the_order_of_the_others() -> None:
    frames = (Frame("step", "/home/u/train.py", 12),)
    threads = [Thread(number, f"t{number}", False, False, frames) for number in (12, 10, 11)]
    heads = [line for line in render(threads, 10).splitlines() if line.startswith("thread")]
    assert [line.split()[1] for line in heads] == ["10", "12", "11"]
