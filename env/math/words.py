"""Words that change how a number or an expression beside them is read."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATING = _set(
    """
    of and or plus minus times over by per from to than less more fewer half halves third thirds quarter
    quarters fourth fourths fifth fifths sixth eighth tenth twice thrice double triple dozen hundred thousand
    million billion divided multiplied squared cubed added subtracted increased decreased another each every
    percent about approximately almost around at
    """
)
"""May belong to the expression that follows them: `half of 12 + 24`."""
LABELS = _set(
    """
    day days week weeks month months year years step part chapter page level grade question problem number no
    line group team room floor bus test game round trip case option
    """
)
"""Name a thing by the number behind them: `on day 1 * 2`."""
DERIVING = _set(
    """
    so thus then hence therefore we get have find obtain which this gives it that is means the and to a
    subtract subtracting add adding divide dividing multiply multiplying expand expanding simplify simplifying
    combine combining like terms both sides of by from first next now finally equation solution answer step
    """
)
"""Lines with other words may speak of a case, a trial or another unknown: `try x = 2`."""
WHOLE = _set("total sum cost costs price amount number distance area rate speed")
"""Before `of` they name what is computed: `a total of 12 + 24`."""
COUNTING = _set(
    """
    hundred thousand million billion trillion dozen score pair couple half halves third quarter fourth fifth
    sixth seventh eighth ninth tenth hundredth thousandth millionth point and or not times plus minus over by
    to than more less of is are was no none pi squared cubed mod modulo
    """
)
"""Behind a number they make it another number, or no number."""
FUNCTIONS = _set("sqrt frac binom sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp")
"""Take an argument; `frac` and `binom` take two."""
SILENT = _set("left right displaystyle big Big bigg Bigg quad qquad mathbf boldsymbol")
"""LaTeX that changes only how something looks."""
_UNTIL_TWELVE = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: number for number, word in enumerate(_UNTIL_TWELVE.split())}
NUMBERS |= {"fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50}
