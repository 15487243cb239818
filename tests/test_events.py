from edgekit.events import MOST_ALIKE, Finding, grouped


def kept(number, *, severity="note", why="its sums reach {n}e+04, more than 'c{n}' holds"):
    text = f"node add{number} kept in fp32: " + why.format(n=number)
    return Finding(severity=severity, node=f"add{number}", rule="kept", text=text, remedy="r")


def test_a_few_findings_are_told_one_by_one():
    few = [kept(number) for number in range(MOST_ALIKE)]
    assert grouped(few) == few


def test_many_that_differ_in_names_and_numbers_are_told_once_with_their_number():
    (found,) = grouped(kept(number) for number in range(12))
    assert found.text == (
        "node add0 kept in fp32: its sums reach 0e+04, more than 'c0' holds "
        "(the same of 11 others: 'add1', 'add2', 'add3', 'add4', 'add5' and 6 more)"
    )
    assert (found.node, found.rule, found.severity, found.remedy) == ("add0", "kept", "note", "r")


def test_what_says_something_else_stays_apart_and_in_order():
    other = [kept(20, severity="warning"), kept(21, why="the option keep names it")]
    found = grouped([*(kept(number) for number in range(6)), *other, kept(7)])
    assert [finding.node for finding in found] == ["add0", "add20", "add21"]
    assert "6 others" in found[0].text
