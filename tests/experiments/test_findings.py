"""The ledger of findings: every line is complete, what shows it exists, and its numbers are those of the tables."""

import csv
import math
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from browser import HEAD, PHONE, opened
from torch import nn

import fedcore as fc
from fedbook import pages
from fedbook.documents import definitions as table_definitions
from fedbook.documents.definitions import printed_table
from fedbook.studies.sizes import size
from fedbook.verdicts import findings
from fedcore import models
from fedcore.submodels import Width, cost
from tools import book

LEDGER_OF = findings.findings()


# ---- the ledger


def test_every_line_of_the_file_is_a_finding_and_none_stands_there_twice():
    with findings.LEDGER.open(encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == len(LEDGER_OF) + 1
    assert len({(f.document, f.place) for f in LEDGER_OF}) == len({f.finding for f in LEDGER_OF}) == len(LEDGER_OF)
    for field, known in (("document", findings.DOCUMENTS), ("kind", findings.KINDS), ("severity", findings.SEVERITIES)):
        assert {getattr(f, field) for f in LEDGER_OF} == set(known)


@pytest.mark.parametrize(("field", "end"), [("place", ""), ("finding", "."), ("here", ".")])
def test_texts_are_short_and_clean(field, end):
    for f in LEDGER_OF:
        text = getattr(f, field)
        assert 0 < len(text) <= 240, f
        assert text == " ".join(text.split()), f
        assert text.endswith(end), f


def test_every_cell_that_shows_a_finding_exists():
    known = set()
    for path in book.chapters():
        known |= {f"{path.stem}#{cell['id']}" for cell in book.read(path).cells if cell["cell_type"] == "code"}
    assert not {f.shown_by for f in LEDGER_OF if "#" in f.shown_by} - known


# ---- numbers, computed from the printed tables; what the ledger says about the place holds them


def said(document, place):
    """The one finding about a place."""
    (text,) = (f.finding for f in LEDGER_OF if (f.document, f.place) == (document, place))
    return text


def printed(name):
    """Method x column of a printed table, columns in the order of the print: (data set, setting)."""
    table = printed_table(f"{name}.csv")
    columns = dict.fromkeys(zip(table["dataset"], table["setting"], strict=True))
    frame = table.pivot(index="method", columns=["dataset", "setting"], values="value")[list(columns)]
    frame.columns = [f"{data.split()[0]} {setting.split(',')[0]}" for data, setting in columns]
    return frame


TABLE4, TABLE5 = printed("seed000_table4"), printed("seed000_table5")


def thesis(name):
    """Method x data set of a table of the thesis."""
    frame = printed_table(f"seed004_table{name}.csv").pivot(index="method", columns="dataset", values="value")
    return frame.astype(float)


def holds(text, *numbers, digits=2):
    """All numbers stand in the text, with that many digits."""
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(f'{number:.{digits}f}')}(?![\d])", text), (number, text)


def test_five_methods_of_table_1_have_no_printed_accuracy():
    rated = printed_table("seed000_table1.csv")
    unseen = set(rated["method"]) - set(TABLE4.index) - set(TABLE5.index)
    assert len(unseen) == 5
    assert all(name in said("S000", "Table 1, untested rows") for name in unseen)
    assert rated["setting"].nunique() == 7


def test_forty_batches_are_more_than_one_local_epoch():
    steps = math.ceil(50_000 / 100 / 32)
    assert steps < 40
    holds(said("S000", "Table 2, number of batches"), steps, digits=0)


def test_fedup_leads_by_less_than_a_point_in_two_columns():
    lead = (TABLE4.loc["FedUp"] - TABLE4.drop("FedUp").max()).round(2)
    lead = lead[[not column.endswith("IID") or "non" in column for column in lead.index]]
    assert lead.min() == 0.30
    assert (lead < 1).sum() == 2
    holds(said("S000", "Section 6, number of seeds"), lead.min())


def test_fedup_is_second_in_both_iid_columns():
    text = said("S000", "Contribution (3), best in all cases")
    for column in ("CIFAR-10 IID", "CIFAR-100 IID"):
        assert TABLE4[column].idxmax() == "FedDyn"
        holds(text, TABLE4.loc["FedDyn", column], TABLE4.loc["FedUp", column])


def test_three_of_seven_rivals_are_outside_the_quoted_range():
    seven = ["FedAvg", "FedProx", "SCAFFOLD", "MimeLite", "FedSMOO", "FedPVR", "MOON"]
    below = (TABLE4.loc["FedUp"] - TABLE4.loc[seven]).mean(axis=1)
    outside = below[(below < 2) | (below > 5)]
    assert set(outside.index) == {"FedProx", "FedPVR", "SCAFFOLD"}
    holds(said("S000", "Section 6.2.1, 2 % to 5 % below"), *outside)


def test_stem_is_not_last_where_the_text_says_so():
    assert "q = 0.02" in said("S000", "Section 6.2.1, STEM is the worst")
    below = {c: set(TABLE4.index[TABLE4[c] < TABLE4.loc["STEM", c]]) for c in TABLE4}
    assert {c: names for c, names in below.items() if names - {"FedDyn"}} == {
        "FEMNIST non-IID": {"FedPVR"},
        "CIFAR-100 q=0.02": {"SCAFFOLD", "FedPVR", "FedDyn"},
    }


def test_four_entries_are_above_fedavg_at_the_smallest_sampling_rate():
    gain = (TABLE5 - TABLE5.loc["FedAvg"]).drop(["FedAvg", "FedUp"])[[c for c in TABLE5 if c.endswith(" 0.2%")]].stack()
    better = gain[gain > 0].round(2)
    assert better.to_dict() == {
        ("FedDyn", "FEMNIST sampling rate 0.2%"): 0.89,
        ("FedSMOO", "FEMNIST sampling rate 0.2%"): 0.68,
        ("FedSMOO", "CIFAR-10 sampling rate 0.2%"): 0.67,
        ("SCAFFOLD", "CIFAR-10 sampling rate 0.2%"): 0.01,
    }
    holds(said("S000", "Section 6.2.2, no method improves on FedAvg"), *better)


def test_fedsmoo_has_nearly_the_gain_of_fedup_in_one_column():
    gain = (TABLE4 - TABLE4.loc["FedAvg"])["CIFAR-10 q=0.3"]
    holds(said("S000", "Section 6.2.3, all others like FedAvg"), gain["FedSMOO"], gain["FedUp"])


def test_five_cells_are_exactly_at_chance():
    chance = {"FEMNIST": 100 / 62, "CIFAR-10": 10.0, "CIFAR-100": 1.0}
    found = [m for t in (TABLE4, TABLE5) for c in t for m, v in t[c].items() if round(chance[c.split()[0]], 2) == v]
    assert len(found) == 5
    assert set(found) == {"SCAFFOLD", "FedPVR", "STEM"}
    assert "five" in said("S000", "Tables 4 and 5, cells at chance")


def test_accuracy_falls_four_times_although_data_become_more_alike():
    columns = [[c for c in TABLE4 if c.startswith(data)] for data in ("CIFAR-10 ", "CIFAR-100 ")]
    pairs = [pair for several in columns for pair in pairwise(several)]
    falls = [(m, a, b) for a, b in pairs for m, row in TABLE4.iterrows() if row[b] < row[a]]
    assert len(falls) == 4
    text = said("S000", "Table 4, falling rows")
    assert text.startswith("Four")
    assert ("FedSMOO", "CIFAR-10 q=0.3", "CIFAR-10 q=0.4") in falls
    holds(text, *TABLE4.loc["FedSMOO", ["CIFAR-10 q=0.3", "CIFAR-10 q=0.4"]])


def test_the_state_of_a_thousand_clients_is_44_7_gigabytes():
    d = 11_181_642  # ResNet18 with group norm and ten classes, in 32-bit numbers
    holds(said("S000", "Table 5, FedDyn left out"), 1000 * d * 4 / 1e9, digits=1)
    assert [len(m.client_state) for m in (fc.FedDyn(), fc.SCAFFOLD(), fc.FedSMOO())] == [1, 1, 2]


def test_320_is_the_number_of_flattened_features():
    side = 28
    for _ in range(2):
        side = (side - 5 + 1) // 2  # convolution 5x5 without padding, pooling by 2
    assert (20 * side * side, side) == (320, 4)


def test_what_the_correction_of_mime_leaves_is_a_difference_of_curvatures():
    rng = np.random.default_rng(0)
    L = rng.normal(size=(4, 3, 3))
    A, b, x, y = L @ L.transpose(0, 2, 1) + np.eye(3), rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=3)

    def gradient(A, at):
        return np.einsum("npq,nq->np", A, at - b)

    def left(A):
        return gradient(A, y) - gradient(A, x) + gradient(A, x).mean(0) - gradient(A, y).mean(0)

    np.testing.assert_allclose(left(A), np.einsum("npq,q->np", A - A.mean(0), y - x), atol=1e-12)
    np.testing.assert_allclose(left(np.broadcast_to(A[0], A.shape)), 0, atol=1e-12)


def test_the_illustration_ends_24_points_apart():
    ends = printed_table("seed001_figure1.csv").groupby("method")["value"].last()
    holds(said("S001", "Convergence figure"), 100 * (ends["SCAFFOLD"] - ends["FedAvg"]), digits=0)


def test_other_methods_fall_with_the_largest_capacity_as_well():
    fall = thesis("4_3") - thesis("3_4")
    text = said("S004", "Section 3.3.4, HeteroFL and untrained neurons")
    holds(text, fall.loc["FedRolex", "TinyImageNet"], fall.loc["DepthFL", "CIFAR-100"])
    assert fall.loc["DepthFL", "CIFAR-100"] > fall.loc["HeteroFL", "CIFAR-100"]


@pytest.mark.parametrize(("net", "classes"), [("ResNet18", 10), ("ResNet34", 200)])
def test_the_printed_multiply_adds_are_those_of_a_3x3_stem_and_not_of_table_2_1s(net, classes):
    """Means over five widths; Table 2.1's stem, 7x7 with stride 2 and a pool, on small and on large images."""
    told = table_definitions.printed("seed004_table4_2.csv", dataset=net, setting="average MACs", method="others")
    whole = models.MODELS[f"preact_{net.lower()}"]((3, 32, 32), classes)
    small = [Width(r)(whole) for r in (1.0, 0.5, 0.25, 0.125, 0.0625)]
    assert 0.9 < np.mean([cost(part, (3, 32, 32))["macs"] for part in small]) / told <= 1
    stem = [nn.Conv2d(3, part[0].out_channels, 7, 2, 3, bias=False) for part in small]
    large = [nn.Sequential(s, nn.MaxPool2d(3, 2, 1), *part[1:]) for s, part in zip(stem, small, strict=True)]
    for side, low, high in ((32, 0, 0.1), (224, 2, 4)):
        assert low < np.mean([cost(part, (3, side, side))["macs"] for part in large]) / told < high


def test_the_rounding_of_099_decides_how_many_channels_are_never_trained():
    widths = (64, 128, 256, 512)
    text = said("S004", "Section 3.3.2, capacity 0.99")
    for keep in (math.ceil, math.floor):
        *first, last = (m - keep(0.99 * m) for m in widths)
        assert f"{', '.join(map(str, first))} and {last}" in text


def test_federated_dropout_is_last_in_one_of_eight_cells():
    last = {(t, data): name for t in ("3_4", "3_5") for data, name in thesis(t).idxmin().items()}
    assert last.pop(("3_4", "EMNIST")) == "Federated Dropout"
    assert [*last.values()] == ["HeteroFL"] * 7


def test_skew_costs_feddse_six_points_on_one_of_the_two_hard_data_sets():
    loss = (thesis("3_5") - thesis("3_4")).loc["FedDSE"]
    assert list(loss[["TinyImageNet", "CIFAR-100"]].round(2)) == [0.69, 6.32]


def test_skew_costs_federated_dropout_more_than_each_rival_on_some_data_sets_alone():
    loss = thesis("3_5") - thesis("3_4")
    assert len(loss.columns) == 4
    less = {rival: set(loss.columns[loss.loc["Federated Dropout"] < loss.loc[rival]]) for rival in loss.index}
    assert {rival: less[rival] for rival in ("HeteroFL", "FedRolex", "DepthFL")} == {
        "HeteroFL": {"CIFAR-10"},
        "FedRolex": {"CIFAR-10", "CIFAR-100"},
        "DepthFL": {"CIFAR-100"},
    }


def test_fedrolex_is_not_the_best_rival_in_two_cells():
    above = {}
    for t in ("3_4", "3_5"):
        rivals = thesis(t).drop("FedDSE")
        above |= {(t, c): set(rivals.index[rivals[c] > rivals.loc["FedRolex", c]]) for c in rivals}
    assert {cell: names for cell, names in above.items() if names} == {
        ("3_4", "EMNIST"): {"HeteroFL", "DepthFL"},
        ("3_5", "TinyImageNet"): {"DepthFL"},
    }


def test_three_methods_rise_from_cifar_100_to_tinyimagenet():
    table = thesis("3_4")
    assert set(table.index[table["TinyImageNet"] > table["CIFAR-100"]]) == {"FedRolex", "DepthFL", "FedDSE"}
    holds(said("S004", "Section 3.3.4, order of data sets"), table["EMNIST"].min())


def test_table_3_5_spans_24_points_on_cifar_10():
    column = thesis("3_5")["CIFAR-10"]
    holds(said("S004", "Section 3.3.4, differences of about two per cent"), column.max() - column.min())


def test_the_text_and_the_tables_of_chapter_3_differ_in_two_numbers():
    table, text = thesis("3_5"), printed_table("seed004_text_numbers.csv")
    rivals = table.drop("FedDSE")["TinyImageNet"]
    holds(said("S004", "Section 3.3.4 and Table 3.5"), 1.87, table.loc["FedDSE", "TinyImageNet"] - rivals.max())
    assert 98.55 in text["value"].to_numpy()
    holds(said("S004", "Section 3.4.2 and Table 3.5"), 98.55, table.loc["FedDSE", "EMNIST"])


def test_neither_temperature_is_always_ahead_of_fedrolex():
    table = printed_table("seed004_table3_6.csv").pivot(index="setting", columns="method", values="value")
    cold, hot = ([c for c in table if f"T={T}" in c.replace(" ", "")] for T in (0, 1))
    lead = table[cold + hot].sub(table["FedRolex"], axis=0).set_axis(["cold", "hot"], axis=1)
    assert lead["cold"].idxmin() == "homogeneous capacity 1/4; data heterogeneity HIGH"
    holds(said("S004", "Section 3.4.5 and Table 3.6"), -lead["cold"].min())
    behind = list(lead.index[lead["hot"] < 0])
    assert len(behind) == 2
    assert all(setting.startswith("heterogeneous") for setting in behind)


def test_depthfl_has_three_times_the_parameters_of_the_others():
    table = printed_table("seed004_table4_2.csv")
    conv = table[table["dataset"] == "CONV"].assign(value=lambda t: t["value"].str[:-1].astype(float))
    values = conv.pivot(index="setting", columns="method", values="value")
    ratio = values["DepthFL"] / values["others"]
    holds(said("S004", "Table 4.2, DepthFL"), ratio["average parameters"], ratio["average MACs"])


def test_by_our_count_of_stages_depthfl_has_fewer_parameters_than_the_others():
    (here,) = (f.here for f in LEDGER_OF if f.place == "Table 4.2, DepthFL")
    cells = {cell.name: cell for cell in table_definitions.get("fedgse-table4.2").cells("quick")}
    for what in ("parameters", "macs"):
        depth, width = (size(cells[f"CONV {what} {row}"].spec, 0, None, None)["final"] for row in ("DepthFL", "others"))
        holds(here, depth / width)


def test_what_the_ledger_calls_unused_is_used_by_no_definition():
    """Weighting by samples, standardised activations, other readings of masked cross-entropy, FedSplit with a cohort;
    images augmented anew in every round, in the profiles that have results."""
    for table in table_definitions.tables().values():
        for profile in table_definitions.PROFILES:
            for spec in (cell.spec for cell in table.cells(profile) if "federation" in cell.spec):
                name, arguments = spec["method"]
                assert name != "FedSplit" or spec["run"]["cohort"] is None
                assert table.document == "known" or "weighting" not in spec["run"]
                assert not arguments.get("standardise")
                assert arguments.get("labels", "zero") == "zero"
                if table.document == "S003" and profile != "paper":
                    assert spec["federation"].get("augment", {"once": True})["once"]


def test_table_4_5_has_the_values_of_spl():
    table = printed_table("seed004_table4_5.csv")
    for classes, other in ((2, "4_3"), (4, "4_4")):
        row = table[table["setting"].str.startswith(f"{classes} ")]
        spl = thesis(other).loc["FedGSE-SPL"]
        assert list(row["value"].astype(float)) == [spl["EMNIST"], spl["CIFAR-10"]]
    assert thesis("4_3")["EMNIST"].max() < thesis("4_4")["EMNIST"].max()  # Table 4.3 is the harder setting


DATA = ["EMNIST", "CIFAR-10", "CIFAR-100", "TinyImageNet"]


def test_the_gains_of_section_4_4_1_are_those_of_spl_without_depthfl():
    table = thesis("4_3")[DATA]
    gains = table.loc["FedGSE-SPL"] - table.loc[["HeteroFL", "Federated Dropout", "FedRolex"]].max()
    holds(said("S004", "Section 4.4.1, gains at high heterogeneity"), *gains)
    behind = table.loc["DepthFL"] > table.loc["FedGSE-SPL"]
    assert list(table.columns[behind]) == ["EMNIST", "CIFAR-100"]


def test_the_gain_on_tinyimagenet_is_048_by_the_table():
    column = thesis("4_4")["TinyImageNet"]
    gain = column["FedGSE-SPL"] - column[["HeteroFL", "Federated Dropout", "FedRolex"]].max()
    holds(said("S004", "Section 4.4.1, gain on TinyImageNet"), 0.39, gain)


def test_depthfl_is_ahead_of_fedgse_on_three_data_sets_at_low_heterogeneity():
    table = thesis("4_4")[DATA]
    ahead = table.loc["DepthFL"] > table.loc[["FedGSE-CSL", "FedGSE-SPL"]].max()
    assert list(table.columns[ahead]) == ["EMNIST", "CIFAR-10", "CIFAR-100"]


def test_csl_is_ahead_of_spl_on_cifar_100_at_low_heterogeneity():
    column = thesis("4_4")["CIFAR-100"]
    assert column["FedGSE-CSL"] > column["FedGSE-SPL"]
    holds(said("S004", "Section 4.4.2, CSL and SPL"), column["FedGSE-CSL"], column["FedGSE-SPL"])


def test_the_largest_step_of_table_4_5_is_from_two_to_four_classes():
    table = printed_table("seed004_table4_5.csv")
    steps = table.groupby("dataset")["value"].apply(lambda v: list(np.diff(v.astype(float))))
    assert all(step[0] == max(step) for step in steps)
    (cifar,) = (step for data, step in steps.items() if data.startswith("CIFAR-10"))
    holds(said("S004", "Section 4.5.4, threshold"), *cifar[:2])


# ---- as shown on a page


def test_the_sentence_counts_what_the_table_lists():
    text = repr(findings.counted(LEDGER_OF))
    assert f"{len(LEDGER_OF)} findings" in text
    for key, name in findings.DOCUMENTS.items():
        assert f"{sum(f.document == key for f in LEDGER_OF)} in the {name}" in text


def test_a_cell_is_a_link_to_the_page_of_its_chapter_and_a_test_is_code():
    html = findings.listed(LEDGER_OF).html
    assert '<a href="fedup.html">fedup</a>, cell <code>exercise-printed</code>' in html
    assert "<code>test_theorems_02.py::test_thm_literal_scale</code>" in html
    assert html.count("<tr>") == len(LEDGER_OF) + 1


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "name": ["item 10", "item 9", "a < b", "item 2"],
            "weight": pd.Categorical(["light", "heavy", "heavy", "light"], ["heavy", "light", "unused"], ordered=True),
            "shown by": [pages.Html("<b>bold</b> word", "bold word"), "x", "y", "z"],
        }
    )


def test_texts_are_escaped_and_html_is_kept(frame):
    shown = pages.filtered(frame, "A & B", ["weight"])
    assert "<caption>A &amp; B</caption>" in shown.html
    assert "<td>a &lt; b</td>" in shown.html
    assert "<td><b>bold</b> word</td>" in shown.html
    assert repr(shown).splitlines() == [
        "A & B", "item 10 | light | bold word", "item 9 | heavy | x", "a < b | heavy | y", "item 2 | light | z",
    ]  # fmt: skip


@pytest.fixture
def page(frame, tmp_path):
    path = tmp_path / "page.html"
    tables = pages.filtered(frame, "first", ["weight"]).html + pages.filtered(frame, "second").html
    path.write_text(f"{HEAD}<title>t</title><body>{tables}", encoding="utf-8")
    return path


def names(box):
    """First cells of the rows that a reader sees, from top to bottom."""
    return [row.locator("td").first.inner_text() for row in box.locator("tbody tr").all() if row.is_visible()]


def test_words_and_menus_filter_together_and_the_count_follows(browser, page):
    with opened(browser, page) as tab:
        box, other = tab.locator(".fc-filter").all()
        assert box.get_by_label("weight").locator("option").all_inner_texts() == ["all", "heavy (2)", "light (2)"]
        box.get_by_label("words").fill("ITEM word")  # all words, in any cell, whatever their case
        assert names(box) == ["item 10"]
        box.get_by_label("words").fill("item")
        box.get_by_label("weight").select_option("light")
        assert names(box) == ["item 10", "item 2"]
        assert box.locator("output").inner_text() == "2 of 4 rows"
        assert len(names(other)) == 4
        box.get_by_label("weight").select_option("")
        box.get_by_label("words").fill("")
        assert names(box) == ["item 10", "item 9", "a < b", "item 2"]


def test_headers_sort_up_and_down_by_keyboard_numbers_by_size_and_categories_by_rank(browser, page):
    with opened(browser, page) as tab:
        box = tab.locator(".fc-filter").first
        box.get_by_label("words").focus()
        for _ in range(3):  # the menu, the window in which the table scrolls, the first header
            tab.keyboard.press("Tab")
        for key, rows, sort in (
            ("Enter", ["a < b", "item 2", "item 9", "item 10"], "ascending"),
            ("Space", ["item 10", "item 9", "item 2", "a < b"], "descending"),
        ):
            tab.keyboard.press(key)
            assert (names(box), box.locator("th").first.get_attribute("aria-sort")) == (rows, sort)
        box.get_by_role("button", name="weight").click()
        assert names(box) == ["item 9", "a < b", "item 10", "item 2"]  # equal ones in the order of the page
        assert box.locator("th[aria-sort]").count() == 1


def test_without_script_the_whole_table_stands_there_and_no_control(browser, page):
    with opened(browser, page, java_script_enabled=False) as tab:
        box = tab.locator(".fc-filter").first
        assert box.locator("input, select, button").count() == 0
        assert len(names(box)) == 4


@pytest.mark.parametrize("size", [PHONE, (688, 900)], ids=str)
def test_the_ledger_fits_its_window(browser, tmp_path, size):
    path = tmp_path / "ledger.html"
    path.write_text(f"{HEAD}<title>t</title><body>{findings.listed(LEDGER_OF).html}", encoding="utf-8")
    with opened(browser, path, size) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.locator(".fc-window").evaluate("e => e.scrollWidth <= e.clientWidth")
        for menu in ("document", "kind", "severity"):
            assert tab.get_by_label(menu).is_visible()


# ---- departures


def test_departures_are_those_of_chapters_that_exist():
    with findings.DEPARTURES.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    of_no_source = {"your_own", "systems", "conclusion"}
    assert {line["chapter"] for line in lines} == {path.stem for path in book.chapters()} - of_no_source
    assert len({tuple(line.values()) for line in lines}) == len(lines)
    assert all(text.strip() for line in lines for text in line.values())


def test_a_departure_says_a_number_of_the_page():
    assert "settles at 0.250 instead" in findings.departures("averaging", literal="0.250").text
    with pytest.raises(ValueError, match=r"\{literl\}"):
        findings.departures("averaging", literl=1)
    with pytest.raises(ValueError, match="'12_none'"):
        findings.departures("12_none")
