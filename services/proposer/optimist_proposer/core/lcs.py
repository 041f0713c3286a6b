"""Longest common subsequence of the lines of the output and of the prediction, a line at a time.

The bit-parallel method of Hyyrö, "Bit-parallel LCS-length computation revisited" (2004), which
RapidFuzz uses too. Its whole state is one bit per predicted line, so that it is kept between
completed lines instead of being computed anew: a line costs a few machine words.

Bit i of `matched` is set where the LCS of the output with the first i + 1 predicted lines is longer
than with the first i.
"""


def add_line(matched: int, same_lines: int) -> int:
    """Returns `matched` after one more output line.

    Args:
        matched: The state before it; 0 when there is no output line.
        same_lines: Bit i is set if predicted line i equals the output line.
    """
    # Negative integers have infinitely many leading ones, so no width is needed.
    unmatched = ~matched
    hits = unmatched & same_lines
    return ~((unmatched + hits) | (unmatched - hits))


def lcs_length(matched: int, num_predicted_lines: int) -> int:
    """Returns the length of the LCS of the output with the first `num_predicted_lines` lines."""
    return (matched & ((1 << num_predicted_lines) - 1)).bit_count()
