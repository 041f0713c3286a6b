// Where the texts of rows probably go on: after the longest match of a row's last tokens, of equal
// ones that next to its cursor, in its own text or around the cursor of its prediction.

struct LookUp {
  const int32_t *texts, *predicted;  // Of all slots.
  int64_t text_stride, predicted_stride;
  const int64_t *slots, *lengths, *num_prompt_tokens, *limits;  // Of the rows.
  int64_t *cursors, *predicted_cursors;  // Of all slots, from the ends of their texts.
  const int64_t* predicted_lengths;
  int64_t *num_matched, *num_tokens, *positions, *tokens;  // Of the rows, written.
  int64_t num_rows, width, longest, reach, matched_at_start, no_cursor;
};

struct Match {
  int64_t index = -1, num_matched = 0, distance = 0;
};

// Compares the last tokens of `text` (at most `longest`) with those before each index of a source.
inline Match match(const int32_t* text, int64_t length, const int32_t* source, int64_t end,
                   int64_t first, int64_t stop, int64_t cursor, int64_t longest) {
  Match best;
  const int64_t near = std::max<int64_t>(cursor, 0);
  for (int64_t index = std::max<int64_t>(first, 1); index < std::min(stop, end); ++index) {
    if (length < 1 || source[index - 1] != text[length - 1]) continue;
    const int64_t most = std::min({longest, index, length});
    int64_t number = 1;
    while (number < most && source[index - 1 - number] == text[length - 1 - number]) ++number;
    const int64_t distance = std::abs(index - near);
    if (number > best.num_matched || (number == best.num_matched && distance < best.distance))
      best = {index, number, distance};
  }
  if (best.index < 0 && cursor < end) best.index = cursor;
  return best;
}

inline void look_up(LookUp& call) {
  for (int64_t row = 0; row < call.num_rows; ++row) {
    const int64_t slot = call.slots[row], length = call.lengths[row];
    const int32_t* text = call.texts + slot * call.text_stride;
    const int32_t* predicted = call.predicted + slot * call.predicted_stride;
    const int64_t end = call.predicted_lengths[slot];
    const int64_t cursor = std::max<int64_t>(call.predicted_cursors[slot] + length, -1);
    const int64_t own_cursor = std::max<int64_t>(call.cursors[slot] + length, -1);
    const Match own = match(text, length, text, length, 0, length, own_cursor, call.longest);
    Match other = match(text, length, predicted, end, cursor - call.reach, cursor + call.reach,
                        cursor, call.longest);
    // An output begins as its prediction does, perhaps.
    if (length == call.num_prompt_tokens[row] && end > 0) other = {0, call.matched_at_start, 0};
    const bool is_predicted = other.index >= 0 && other.num_matched >= own.num_matched;
    const Match& found = is_predicted ? other : own;
    if (call.limits[row] > 0)
      (is_predicted ? call.predicted_cursors : call.cursors)[slot] =
          found.index < 0 ? call.no_cursor : found.index - length;
    const int64_t left = found.index < 0 ? 0 : (is_predicted ? end : length) - found.index;
    call.num_matched[row] = found.num_matched;
    call.num_tokens[row] = std::min(left, call.limits[row]);
    call.positions[row] = is_predicted ? found.index : -1;
    const int32_t* source = is_predicted ? predicted : text;
    for (int64_t i = 0; i < call.width; ++i)
      call.tokens[row * call.width + i] = i < left ? source[found.index + i] : 0;
  }
}
