// The weights of the model, as `layout.py` lays them out, and what is common in texts of models.

#pragma once

#include <cmath>
#include <stdexcept>
#include <unordered_map>

#include "text.h"

namespace aligner {

constexpr double MOST_EXPONENT = 30.0;

// Factors of what comes after a candidate, apart from its own.
struct Continuation {
  int kind = 0;
  std::array<double, MOST_LENGTH + 1> lengths;            // By tokens that agree.
  std::array<double, MOST_STEPS + 1> steps;               // By nodes before.
  std::array<double, NUM_CLASSES * NUM_CLASSES> classes;  // Of the last token and the next.
};

// See `Weights` in `weights.py`.
class Weights {
 public:
  explicit Weights(std::vector<double> column) : logits(std::move(column)) {
    if (int(logits.size()) != NUM_WEIGHTS) throw std::invalid_argument("weights: not NUM_WEIGHTS");
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
      Continuation& each = continuations[kind];
      const int source = SOURCE[kind];
      each.kind = kind;
      for (int index = 0; index <= MOST_LENGTH; ++index) {
        each.lengths[index] = factor(START_NEXT_LENGTH + source * NUM_LENGTHS + LENGTH[index]);
      }
      for (int index = 0; index <= MOST_STEPS; ++index) {
        each.steps[index] = factor(START_NEXT_STEP + kind * NUM_STEPS + STEP[index]);
      }
      for (int pair = 0; pair < NUM_CLASSES * NUM_CLASSES; ++pair) {
        each.classes[pair] = factor(START_NEXT_CLASS + source * NUM_CLASSES * NUM_CLASSES + pair);
      }
    }
    cursor = continuations[PREDICTED];
    for (int index = 0; index <= MOST_LENGTH; ++index) {
      cursor.lengths[index] *= factor(START_NEXT_CURSOR + LENGTH[index]);
    }
    for (int index = 0; index < NUM_SIGHTINGS; ++index) {
      next_rule[index] = factor(START_NEXT_RULE + index);
      next_rule_passed[index] = factor(START_NEXT_RULE_PASSED + index);
    }
  }

  // What all candidates of a kind have.
  double of_kind(int kind, int rate, int runs, int followed) const {
    return logits[START_RATE + kind * NUM_RUNS + rate] +
           logits[START_RUNS + kind * NUM_RUNS + runs] +
           logits[START_FOLLOWED + kind * NUM_FOLLOWED + followed];
  }

  // A candidate's own factor of all that comes after it.
  double find_factor(int kind, int rate, int runs, double logit) const {
    const int source = SOURCE[kind];
    return std::exp(logits[START_NEXT_LOGIT + kind] * std::min(logit, MOST_LOGIT) +
                    logits[START_NEXT_RATE + source * NUM_RUNS + rate] +
                    logits[START_NEXT_RUNS + source * NUM_RUNS + runs]);
  }

  const std::vector<double> logits;
  std::array<Continuation, NUM_KINDS> continuations;
  Continuation cursor;
  std::array<double, NUM_SIGHTINGS> next_rule, next_rule_passed;

 private:
  double factor(int feature) const { return std::exp(std::min(logits[feature], MOST_EXPONENT)); }
};

// Common tokens after the last two, the last, or the class of the last. See `Common` in
// `common.py`, which counts them.
class Common {
 public:
  using Row = std::pair<int32_t, int32_t>;  // A token, and the feature of how common it is.
  using Rows = std::vector<Row>;
  using Table = std::unordered_map<int64_t, Rows>;

  Common(Table twos, Table ones, Table classes)
      : twos_(std::move(twos)), ones_(std::move(ones)), classes_(std::move(classes)) {}

  // Calls `take` with what commonly follows two tokens, or the last of them.
  template <typename Take>
  void each_further(int32_t before, int32_t last, Take take) const {
    const Rows* rows = find(twos_, key_of(before, last));
    if (!rows) rows = find(ones_, last);
    if (rows) std::for_each(rows->begin(), rows->end(), take);
  }

  // Calls `take` with what commonly follows a text, likely or not; a token may be named twice.
  template <typename Take>
  void each(const Text& text, int last_class, Take take) const {
    if (text.empty()) return;
    const int32_t last = text.back();
    if (text.size() > 1) {
      const Rows* rows = find(twos_, key_of(text[text.size() - 2], last));
      if (rows) std::for_each(rows->begin(), rows->end(), take);
    }
    const Rows* rows = find(ones_, last);
    if (!rows) rows = find(classes_, last_class);
    if (rows) std::for_each(rows->begin(), rows->end(), take);
  }

 private:
  static int64_t key_of(int32_t before, int32_t last) {
    return (int64_t(before) << TOKEN_BITS) | last;
  }

  static const Rows* find(const Table& table, int64_t key) {
    const auto found = table.find(key);
    return found == table.end() ? nullptr : &found->second;
  }

  Table twos_, ones_, classes_;
};

}  // namespace aligner
