// Results of a worker's steps, as columns.

#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>

#include "column.h"

namespace aligner {

// Returns whether all rows of a result fit its plan, as `find_wrong_rows` of the scheduler finds for
// results without errors that repeat nothing; also false for drafts from elsewhere than windows.
inline bool fits_plan(const py::handle& slots, const py::handle& emits,
                      const py::handle& num_planned_drafts, const py::handle& num_tokens,
                      const py::handle& max_lengths, const py::handle& is_alive,
                      const py::handle& result_slots, const py::handle& lengths,
                      const py::handle& num_emitted, const py::handle& token_ids,
                      const py::handle& num_drafted, const py::handle& num_accepted,
                      const py::handle& sources, uint32_t vocab_size) {
  const Column<int64_t> of_rows(slots);
  const Column<int32_t> emitting(emits), planned(num_planned_drafts), begins(num_tokens),
      longest(max_lengths), of_result(result_slots), ends(lengths), emitted(num_emitted),
      tokens(token_ids), drafted(num_drafted), accepted(num_accepted), from(sources);
  const Column<bool> alive(is_alive);
  const int64_t number = of_rows.size();
  for (int64_t size :
       {emitting.size(), planned.size(), begins.size(), longest.size(), alive.size()}) {
    if (size != number) throw std::invalid_argument("the columns are of other rows");
  }
  for (const auto* column : {&of_result, &ends, &emitted, &drafted, &accepted, &from}) {
    if (column->size() != number) return false;
  }
  int64_t num_new = 0;
  for (int64_t row = 0; row < number; ++row) {
    if (of_result[row] != of_rows[row]) return false;
    if (accepted[row] < 0 || drafted[row] < accepted[row] || planned[row] < drafted[row]) {
      return false;
    }
    if (from[row] != (drafted[row] > 0)) return false;
    // What is over may lag.
    const int64_t wanted = emitting[row] * (int64_t(1) + accepted[row]);
    if (emitted[row] != wanted && (alive[row] || emitted[row])) return false;
    const int64_t end = int64_t(begins[row]) + emitted[row];
    if (alive[row] && (ends[row] != end || end > longest[row])) return false;
    num_new += emitted[row];
  }
  if (tokens.size() != num_new) return false;
  // Negative numbers are large without their sign.
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](int32_t token_id) { return uint32_t(token_id) < vocab_size; });
}

}  // namespace aligner
