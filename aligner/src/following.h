// Where an output stands in what it repeats and in itself, and what it says instead. See
// `following/`, where all of it is described.

#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "text.h"

namespace aligner {

constexpr int SURE_RUN = 3;
constexpr int CERTAIN_RUN = 16;
constexpr int CERTAIN_AHEAD = 64;
constexpr int32_t MOST_RETURNS = 3;

inline int run_bucket(int64_t number) {
  return std::min(int(std::bit_width(uint64_t(number))), NUM_RUNS - 1);
}

// How many tokens before an offset are those that the text ends with.
inline int count_equal(const Text& text, int32_t offset, int32_t num_output) {
  const int32_t most = std::min({MOST_LENGTH, offset, num_output});
  const int32_t* one = text.data() + offset - 1;
  const int32_t* other = text.data() + text.size() - 1;
  int32_t length = 0;
  while (length < most && one[-length] == other[-length]) ++length;
  return length;
}

constexpr int MOST_CHOSEN = 40;
using Chosen = Few<int32_t, MOST_CHOSEN>;

// The offsets that agree longest, among equals the nearest; going back counts twice.
template <typename Numbers>
Chosen choose_longest(const Text& text, const Numbers& offsets, int32_t num_output, int32_t near,
                      int most) {
  struct Ranked {
    int64_t rank;
    int32_t number, offset;

    bool operator<(const Ranked& other) const {
      return std::tie(rank, number) < std::tie(other.rank, other.number);
    }
  };
  Few<Ranked, MOST_CHOSEN> ranked;
  const int64_t most_distance = 2 * int64_t(text.size()) + 1;
  for (int32_t offset : offsets) {
    const int length = count_equal(text, offset, num_output);
    const int shortness = (length < MOST_LENGTH) + (length < 16) + (length < 8) + (length < 5);
    const int64_t distance = offset >= near ? offset - near : 2 * (int64_t(near) - offset);
    ranked.add({shortness * most_distance + distance, ranked.size(), offset});
  }
  std::sort(ranked.begin(), ranked.end());
  Chosen chosen;
  for (const Ranked& each : ranked) {
    if (chosen.size() == most) break;
    chosen.add(each.offset);
  }
  return chosen;
}

// A substitution that was seen.
struct Rule {
  static constexpr int MOST_TOKENS = 6;
  using Tokens = Few<int32_t, MOST_TOKENS>;

  Tokens replaced;  // What the prediction says.
  int32_t offset;   // Where the output said something else instead.
  int32_t length;   // Of that.
  bool is_pure;     // Whether something is only inserted or left out.
  int num_sightings = 1;
  int num_passed = 0;  // Times the output said what was predicted.

  int sightings() const {
    return (is_pure * 4 + std::min(3, num_sightings - 1)) * 4 + std::min(3, num_passed);
  }
};

// The substitutions of one output, by the first token that they replace.
class Rules {
 public:
  static constexpr int MOST_PER_TOKEN = 3;
  using Found = Few<int32_t, MOST_PER_TOKEN>;

  Rule& operator[](int32_t rule) { return rules_[rule]; }
  const Rule& operator[](int32_t rule) const { return rules_[rule]; }

  bool has(int32_t token_id) const {
    return marks_[token_id & 0xFF] && by_token_.contains(token_id);
  }

  // The rules for what stands at an offset.
  Found find(const Text& text, int32_t offset) const {
    Found found;
    if (!marks_[text[offset] & 0xFF]) return found;
    const auto rules = by_token_.find(text[offset]);
    if (rules == by_token_.end()) return found;
    for (int32_t rule : rules->second) {
      if (stands(text, offset, rules_[rule].replaced)) found.add(rule);
    }
    return found;
  }

  // Notes that `text[offset:offset_end]` came in place of `text[start:end]`.
  void learn(const Text& text, int32_t start, int32_t end, int32_t offset, int32_t offset_end) {
    const bool is_pure = start == end || offset == offset_end;
    end += is_pure;
    offset_end += is_pure;
    const int32_t number = end - start, length = offset_end - offset;
    if (number < 1 || number > Rule::MOST_TOKENS || length < 1 || length > Rule::MOST_TOKENS) {
      return;
    }
    Rule::Tokens replaced, said;
    for (int32_t index = start; index < end; ++index) replaced.add(text[index]);
    for (int32_t index = offset; index < offset_end; ++index) said.add(text[index]);
    if (is_same(replaced, said) || *std::min_element(replaced.begin(), replaced.end()) < 0) return;
    marks_[replaced.items[0] & 0xFF] = true;
    auto& rules = by_token_[replaced.items[0]];
    for (int32_t rule : rules) {
      Rule& known = rules_[rule];
      if (known.length == length && is_same(known.replaced, replaced) &&
          stands(text, known.offset, said)) {
        ++known.num_sightings;
        return;
      }
    }
    rules.push_back(int32_t(rules_.size()));
    rules_.push_back({replaced, offset, length, is_pure});
    if (int(rules.size()) > MOST_PER_TOKEN) rules.erase(rules.begin());
  }

 private:
  static bool is_same(const Rule::Tokens& one, const Rule::Tokens& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end());
  }

  static bool stands(const Text& text, int32_t offset, const Rule::Tokens& tokens) {
    return offset + tokens.size() <= size_of(text) &&
           std::equal(tokens.begin(), tokens.end(), text.begin() + offset);
  }

  // One that is forgotten may still be said: its memory stays.
  std::vector<Rule> rules_;
  std::unordered_map<int32_t, std::vector<int32_t>> by_token_;
  std::array<bool, 256> marks_{};  // By the last byte of a token: sooner to be asked.
};

// A rule whose replacement the output has begun to say.
struct Pending {
  int32_t rule;
  int32_t num_said;
  int32_t resume;  // Where the prediction goes on after what is replaced.
};

// The cursor in what is repeated; a fold over the output.
class Alignment {
 public:
  Alignment(const Text& text, int32_t num_aligned, int32_t context_start, const ContextIndex& index)
      : text_(text),
        index_(index),
        num_aligned_(num_aligned),
        start_(size_of(text)),
        context_start_(context_start) {}

  int32_t offset = 0;   // Where the next token is predicted.
  int32_t run = 0;      // Tokens in a row that were as predicted.
  int32_t lost_at = 0;  // Where it was last sure and then lost.
  int32_t num_lost = 0;
  std::optional<Pending> pending;
  Rules rules;
  // How often the output said something else where it was sure, by offset.
  std::map<int32_t, int32_t> left;
  int64_t num_searches = 0;

  bool is_found() const { return run > 0 && offset < num_aligned_; }

  // Whether the output goes on as predicted for so long that nothing else is looked at.
  bool is_certain() const {
    if (run < CERTAIN_RUN) return false;
    for (auto each = left.lower_bound(offset);
         each != left.end() && each->first < offset + CERTAIN_AHEAD; ++each) {
      if (each->second > 1) return false;
    }
    return true;
  }

  // How often the output came back to an offset and left it again, at most MOST_RETURNS.
  int count_returns(int32_t where) const {
    if (left.empty()) return 0;
    const auto found = left.find(where);
    return found == left.end() ? 0 : std::min(found->second - 1, MOST_RETURNS);
  }

  int rate() const {
    const int32_t num_tokens = size_of(text_) - start_;
    if (num_tokens < 8) return 0;
    return std::max(1, run_bucket(num_tokens / (num_losses_ + 1)));
  }

  int runs() const {
    if (!num_losses_) return NUM_RUNS - 1;
    return run_bucket(last_run_ + std::min<int64_t>(run_before_, 4 * int64_t(last_run_)));
  }

  // Takes the token that was just appended to the text.
  void advance(int32_t token_id) {
    if (pending) {
      go_on_replacing(*pending, token_id);
    } else if (offset < num_aligned_ && text_[offset] == token_id) {
      for (int32_t rule : rules.find(text_, offset)) ++rules[rule].num_passed;
      const bool is_back = num_lost > 0 && !run;
      if (!num_lost && !left.empty()) left.erase(offset);
      ++offset;
      count();
      if (is_back) learn(offset);
    } else {
      diverge(token_id);
    }
  }

  // How many tokens go on as predicted, have no rule and were never left; 0 while one is pending.
  int32_t count_following(const int32_t* tokens, const int32_t* end) const {
    if (pending || offset >= num_aligned_) return 0;
    const int64_t most = std::min<int64_t>(end - tokens, num_aligned_ - offset);
    int32_t number = 0;
    while (number < most && text_[offset + number] == tokens[number] &&
           !rules.has(tokens[number]) && !left.count(offset + number)) {
      ++number;
    }
    return number;
  }

  // Takes tokens that `count_following` has counted.
  void follow(int32_t num_tokens) {
    offset += num_tokens;
    run += num_tokens;
    lost_at = offset;
    num_lost = 0;
  }

 private:
  static constexpr int NEAR_LOSS = 6, BEHIND = 64, AHEAD_OF_LOSS = 256;
  static constexpr int MOST_AMBIGUOUS = 24, MOST_HUNK = 12;

  void count() {
    if (++run >= SURE_RUN) {
      lost_at = offset;
      num_lost = 0;
    } else if (num_lost) {
      ++num_lost;
    }
  }

  void go_on_replacing(Pending said, int32_t token_id) {
    Rule& rule = rules[said.rule];
    if (text_[rule.offset + said.num_said] != token_id) {
      ++rule.num_passed;
      pending.reset();
      lose(said.num_said + 1);
      search(token_id);
      return;
    }
    ++run;
    if (++said.num_said < rule.length) {
      pending = said;
    } else {
      replace(rule, said.resume);
    }
  }

  void replace(Rule& rule, int32_t resume) {
    ++rule.num_sightings;
    pending.reset();
    offset = lost_at = resume;
    num_lost = 0;
  }

  void diverge(int32_t token_id) {
    if (run && !num_lost) {
      const int32_t found = find_rule(token_id);
      if (found >= 0) {
        Rule& rule = rules[found];
        ++run;
        const int32_t resume = offset + rule.replaced.size();
        if (rule.length == 1) {
          replace(rule, resume);
        } else {
          pending = Pending{found, 1, resume};
        }
        return;
      }
      run_before_ = last_run_;
      last_run_ = run;
      if (offset < num_aligned_) ++left[offset];
      lose(1);
    } else {
      run = 0;
      ++num_lost;
    }
    search(token_id);
  }

  int32_t find_rule(int32_t token_id) const {
    if (offset >= num_aligned_) return -1;
    for (int32_t rule : rules.find(text_, offset)) {
      if (text_[rules[rule].offset] == token_id) return rule;
    }
    return -1;
  }

  // Notes that the last tokens are not what is predicted at `offset`.
  void lose(int32_t num_tokens) {
    ++num_losses_;
    run = 0;
    num_lost = 1;
    lost_at = hunk_start_ = offset;
    hunk_offset_ = size_of(text_) - num_tokens;
  }

  // Goes to the offset that the last tokens speak for, or back to where it was lost.
  void search(int32_t token_id) {
    ++num_searches;
    const int32_t found = find_offset(token_id);
    if (found < 0 || found >= num_aligned_) {
      offset = lost_at;
      return;
    }
    offset = found;
    run = 1;
    if (num_losses_ && found >= hunk_start_) learn(found);
  }

  int32_t find_offset(int32_t token_id) const {
    const int32_t num_tokens = size_of(text_) - context_start_;
    const int32_t* end = text_.data() + text_.size();
    for (int order = std::min(MOST_ORDER, num_tokens); order > 1; --order) {
      Few<int32_t, MOST_AMBIGUOUS> predicted;
      for (int32_t each : index_.find(order, end).nearest(lost_at, MOST_AMBIGUOUS)) {
        if (each < num_aligned_) predicted.add(each);
      }
      if (!predicted.size()) continue;
      int32_t found = predicted.items[0];
      if (predicted.size() > 1) {
        found = choose_longest(text_, predicted, num_tokens, lost_at, 1).items[0];
      }
      const int64_t distance = int64_t(found) - lost_at;
      if (order > 2 || (-BEHIND <= distance && distance <= AHEAD_OF_LOSS)) return found;
    }
    const int32_t last = std::min(lost_at + NEAR_LOSS, num_aligned_);
    for (int32_t each = lost_at; each < last; ++each) {
      if (text_[each] == token_id) return each + 1;
    }
    return -1;
  }

  // Learns what was said between the last loss and an offset found again.
  void learn(int32_t found) {
    const int32_t end = size_of(text_);
    int32_t same = 0;
    while (same <= SURE_RUN && found - same > hunk_start_ && end - same > hunk_offset_ &&
           text_[found - same - 1] == text_[end - same - 1]) {
      ++same;
    }
    if (same && end - hunk_offset_ <= MOST_HUNK) {
      rules.learn(text_, hunk_start_, found - same, hunk_offset_, end - same);
    }
  }

  const Text& text_;
  const ContextIndex& index_;
  const int32_t num_aligned_, start_, context_start_;
  int32_t num_losses_ = 0, last_run_ = 0, run_before_ = 0;
  int32_t hunk_start_ = 0, hunk_offset_ = 0;
};

// A cursor in the output itself; a fold over the output.
class Template {
 public:
  Template(const Text& text, OutputIndex& index)
      : text_(text), index_(index), start_(size_of(text)) {}

  int32_t offset = NOWHERE;   // Where the next token was said before.
  int32_t lost_at = NOWHERE;  // Where it was last sure and then lost.
  int32_t num_lost = 0;

  // Takes the token that was just appended to the text.
  void advance(int32_t token_id) {
    if (0 <= offset && offset < size_of(text_) - 1 && text_[offset] == token_id) {
      ++offset;
      if (++run_ >= SURE_RUN) {
        lost_at = offset;
        num_lost = 0;
      } else if (num_lost) {
        ++num_lost;
      }
      return;
    }
    if (run_ && !num_lost) lost_at = offset;
    ++num_lost;
    offset = find_offset(token_id);
    run_ = offset != lost_at;
  }

  // Goes nowhere: what the output says is predicted, and needs no template.
  void leave() {
    offset = lost_at = NOWHERE;
    run_ = num_lost = 0;
  }

 private:
  static constexpr int NEAR_LOSS = 6;

  int32_t find_offset(int32_t token_id) const {
    const int32_t end = size_of(text_);
    if (end - start_ >= MOST_ORDER) {
      const auto offsets = index_.find_latest(MOST_ORDER, text_.data() + end, 2);
      if (offsets.size() > 1) return offsets.items[1];
    }
    if (lost_at >= 0) {
      const int32_t last = std::min(lost_at + NEAR_LOSS, end - 1);
      for (int32_t each = lost_at; each < last; ++each) {
        if (text_[each] == token_id) return each + 1;
      }
    }
    return lost_at;
  }

  const Text& text_;
  OutputIndex& index_;
  const int32_t start_;
  int32_t run_ = 0;
};

}  // namespace aligner
