"""Stored outputs are compared as numbers: what rounds differently on another processor passes, an error does not."""

import pytest

from tools import book, outputs


def shown(text="", html=""):
    return [{"output_type": "execute_result", "execution_count": 3, "data": {"text/plain": text, "text/html": html}}]


def printed(*pieces):
    return [{"output_type": "stream", "name": "stdout", "text": piece} for piece in pieces]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accuracy 61.6 %", "accuracy 61.7 %"),  # 61.65, rounded down and up
        ("excess 3.2e-05", "excess 3.3e-05"),
        ("loss 0.0999", "loss 0.1"),  # a zero at the end is not printed
        ("loss 9.9996e-05", "loss 0.0001"),
        ("from −0.05 to 0.1", "from -0.05 to 0.0"),
        ("limit 1.2345678", "limit 1.2345999"),  # below RELATIVE
        ("equal to 3e-17", "equal to 2.2e-16"),  # noise about zero
        ("lr   0.99\n b  1.0", "lr  1.00\n b   1.0"),  # the columns of a table move
    ],
)
def test_another_last_digit_is_the_same_number(old, new):
    assert outputs.compare(shown(old), shown(new)) is None
    assert outputs.compare(shown(new), shown(old)) is None
    assert outputs.compare(shown(html=f"<td>{old}</td>"), shown(html=f"<td>{new}</td>")) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accuracy 61.6 %", "accuracy 62.2 %"),  # 1 %
        ("excess 3.214e-05", "excess 3.246e-05"),
        ("loss 0.0999", "loss 0.1009"),
        ("1,438 images", "1,439 images"),  # a count
        ("after 12 rounds", "after 13 rounds"),
        ("gap -0.5", "gap 0.5"),
        ("claim holds", "claim holds in part"),
        ("FedAvg 1.0, FedUp 2.0", "FedUp 1.0, FedAvg 2.0"),
        ("1.0 2.0 3.0", "1.0 2.0"),
        ("loss 0.5", "loss nan"),
        ("h2 of 3.1", "h3 of 3.1"),  # a digit of a name
        ('style="width:100%"', 'style="width:90%"'),
    ],
)
def test_an_error_is_not(old, new):
    assert outputs.compare(shown(old), shown(new))
    assert outputs.compare(printed(old), printed(new))
    assert outputs.compare(shown(html=f'<img alt="{old}">'), shown(html=f'<img alt="{new}">'))


def test_an_output_more_or_less_is_a_difference():
    picture = {"output_type": "display_data", "data": {"image/png": "AAAA"}}
    assert "no image/png" in outputs.compare([*shown("1"), picture], shown("1"))
    assert "in addition" in outputs.compare(shown("1"), [*shown("1"), picture])
    assert "outputs of image/png" in outputs.compare([picture, picture], [picture])
    assert outputs.compare([picture], [picture | {"data": {"image/png": "BBBB"}}]) is None  # its alt text is compared
    assert outputs.compare(shown("1"), [])
    assert outputs.compare([], printed("1"))
    assert outputs.compare(printed("a 1.50\n"), printed("a 1.", "50\n")) is None  # a stream may come in pieces


def test_a_warning_about_this_machine_is_no_difference():
    warned = [{"output_type": "stream", "name": "stderr", "text": "UserWarning: this processor has no bfloat16"}]
    assert outputs.compare(printed("a\nb"), [*printed("a\n"), *warned, *printed("b")]) is None
    assert outputs.compare(printed("a\nb"), [*printed("a\n"), *warned]) is not None


def test_the_first_difference_is_told_with_its_place():
    assert outputs.difference("FedAvg 61.6 ± 0.3", "FedAvg 64.6 ± 0.3") == "61.6 became 64.6, after 'FedAvg'"
    assert outputs.difference("it holds: 1", "it fails: 1") == "the words 'it holds:' became 'it fails:'"


def test_a_chaotic_cell_is_compared_in_words_and_in_what_it_counts():
    old = shown("FedAvg 61.6 ± 0.3")
    assert outputs.compare(old, shown("FedAvg 9.8 ± 22.0"), values=False) is None
    for new in ("FedUp 61.6 ± 0.3", "FedAvg 61.6"):
        assert outputs.compare(old, shown(new), values=False)


def test_a_chaotic_cell_gives_its_reason():
    for source in book.chapters():
        for cell in book.read(source).cells:
            assert "chaotic" not in cell.metadata.get("tags", []) or "# chaotic: " in cell.source, source.name
