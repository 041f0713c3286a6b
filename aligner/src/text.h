// The sources and the output after them as one text, and where in it contexts were met before.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "layout.h"

namespace aligner {

constexpr int MOST_ORDER = 3;
constexpr int TOKEN_BITS = 20;
constexpr int32_t MOST_TOKEN_ID = (1 << TOKEN_BITS) - 3;
constexpr int TOKEN_OFFSET = 2;
constexpr int32_t SEPARATOR = -1;
constexpr int32_t NO_POSITION = -1;
constexpr int32_t NOWHERE = -1;

// Tokens of the sources and of the output.
using Text = std::vector<int32_t>;

inline int32_t size_of(const Text& text) { return int32_t(text.size()); }

// Offsets side by side, in memory of somebody else.
struct Span {
  const int32_t* first = nullptr;
  const int32_t* last = nullptr;

  const int32_t* begin() const { return first; }
  const int32_t* end() const { return last; }
  int size() const { return int(last - first); }
};

// A few numbers without a call to the allocator; more than fit are left out.
template <typename T, int ROOM>
struct Few {
  std::array<T, ROOM> items;
  int number = 0;

  void add(T item) {
    if (number < ROOM) items[number++] = item;
  }
  bool has(T item) const { return std::find(begin(), end(), item) != end(); }
  const T* begin() const { return items.data(); }
  const T* end() const { return items.data() + number; }
  T* begin() { return items.data(); }
  T* end() { return items.data() + number; }
  int size() const { return number; }
};

// The offsets of one context, ascending.
struct Offsets : Span {
  Span latest(int most) const { return {std::max(first, last - std::min(most, size())), last}; }

  // How many are after an offset, which is one of them.
  int rank(int32_t offset) const { return int(last - 1 - std::lower_bound(first, last, offset)); }

  // Up to `most` of them around an offset, two thirds of them after it.
  Span nearest(int32_t offset, int most) const {
    if (size() <= most) return {first, last};
    int64_t found = std::lower_bound(first, last, offset) - first;
    int64_t start = std::max<int64_t>(0, std::min<int64_t>(found - most / 3, size() - most));
    return {first + start, first + start + most};
  }
};

// Sorted contexts of a text that does not change; 36 bytes a token. See `context_index.py`.
class ContextIndex {
 public:
  explicit ContextIndex(const Text& text) {
    const int32_t number = size_of(text);
    std::vector<int32_t> order(number), sorted(number);
    std::iota(order.begin(), order.end(), 0);
    for (int length = 1; length <= MOST_ORDER; ++length) {
      if (length > 1) shift(order, sorted);
      sort(text, order, sorted);
      auto& keys = keys_[length - 1];
      auto& offsets = offsets_[length - 1];
      keys.resize(number);
      offsets.resize(number);
      for (int32_t index = 0; index < number; ++index) {
        keys[index] = key_before(text, order[index] + 1, length);
        offsets[index] = order[index] + 1;
      }
    }
  }

  // Offsets after the last `order` tokens before `end`; none if there are none.
  Offsets find(int order, const int32_t* end) const {
    int64_t key = 0;
    for (int distance = 1; distance <= order; ++distance) key = join(key, end[-distance]);
    const auto& keys = keys_[order - 1];
    auto [low, high] = std::equal_range(keys.begin(), keys.end(), key);
    const int32_t* offsets = offsets_[order - 1].data();
    return {{offsets + (low - keys.begin()), offsets + (high - keys.begin())}};
  }

  // How often the text has a token.
  int count(int32_t token_id) const { return find(1, &token_id + 1).size(); }

  // The tokens that are most frequent, the smallest of equally frequent ones first.
  std::vector<int32_t> find_frequent(int most) const {
    std::vector<std::pair<int32_t, int32_t>> counts;
    for (int64_t key : keys_[0]) {
      int32_t token_id = int32_t(key) - TOKEN_OFFSET;
      if (token_id == SEPARATOR) continue;
      if (counts.empty() || counts.back().second != token_id) counts.push_back({0, token_id});
      --counts.back().first;
    }
    std::sort(counts.begin(), counts.end());
    std::vector<int32_t> tokens;
    for (const auto& each : counts) {
      if (int(tokens.size()) == most) break;
      tokens.push_back(each.second);
    }
    return tokens;
  }

 private:
  static constexpr int DIGIT_BITS = TOKEN_BITS / 2;

  static int64_t join(int64_t key, int32_t token_id) {
    return (key << TOKEN_BITS) | (int64_t(token_id) + TOKEN_OFFSET);
  }

  // What is before the beginning is 0.
  static int64_t key_before(const Text& text, int32_t offset, int length) {
    int64_t key = 0;
    for (int distance = 1; distance <= length; ++distance) {
      key = distance > offset ? key << TOKEN_BITS : join(key, text[offset - distance]);
    }
    return key;
  }

  // Turns the order by the contexts that end with each token into that by those before each.
  static void shift(std::vector<int32_t>& order, std::vector<int32_t>& shifted) {
    const int32_t last = int32_t(order.size()) - 1;
    auto next = shifted.begin();
    for (int32_t index : order) {
      if (next == shifted.begin()) *next++ = 0;
      if (index != last) *next++ = index + 1;
    }
    order.swap(shifted);
  }

  // Sorts stably by the token at each index: by radix.
  static void sort(const Text& text, std::vector<int32_t>& order, std::vector<int32_t>& sorted) {
    for (int shift = 0; shift < TOKEN_BITS; shift += DIGIT_BITS) {
      std::array<int32_t, 1 << DIGIT_BITS> starts{};
      const auto digit = [shift](int32_t token_id) {
        return ((token_id + TOKEN_OFFSET) >> shift) & ((1 << DIGIT_BITS) - 1);
      };
      for (int32_t token_id : text) ++starts[digit(token_id)];
      int32_t total = 0;
      for (int32_t& start : starts) total += std::exchange(start, total);
      for (int32_t index : order) sorted[starts[digit(text[index])]++] = index;
      order.swap(sorted);
    }
  }

  std::array<std::vector<int64_t>, MOST_ORDER> keys_;
  std::array<std::vector<int32_t>, MOST_ORDER> offsets_;
};

// Offsets of the output by what is before them: chains of hashes, as in LZ77. What was appended is
// taken in when something is looked up. The specification looks it up by dicts, see
// `context_index.py`.
class OutputIndex {
 public:
  static constexpr int MOST_FOUND = 24;
  using Found = Few<int32_t, MOST_FOUND>;

  explicit OutputIndex(const Text& text) : text_(text), start_(size_of(text)) {}

  // Up to `most` offsets after the last `order` tokens before `end`, the latest one first.
  Found find_latest(int order, const int32_t* end, int most) {
    Found found;
    each_latest(order, end, [&](int32_t offset) {
      found.add(offset);
      return found.size() < most;
    });
    return found;
  }

  // How often the output has a token; `most` if it is at least that.
  int count(int32_t token_id, int most) {
    int number = 0;
    each_latest(1, &token_id + 1, [&](int32_t) { return ++number < most; });
    return number;
  }

 private:
  struct Chains {
    std::vector<int32_t> heads;   // The last offset by hash; 0 for none.
    std::vector<int32_t> before;  // The offset before each; 0 for none.
  };

  static int64_t hash(int64_t last, int64_t second) {
    int64_t number = (last + TOKEN_OFFSET) * 40503 + (second + TOKEN_OFFSET) * 30011;
    return number ^ (number >> 15);
  }

  // Calls `take` with offsets, the latest first, until it returns false.
  template <typename Take>
  void each_latest(int order, const int32_t* end, Take take) {
    if (int64_t(ones_.before.size()) < size_of(text_) - start_) catch_up();
    const Chains& chains = order == 1 ? ones_ : twos_;
    if (chains.heads.empty()) return;
    const int32_t last = end[-1], second = order > 1 ? end[-2] : 0;
    const int32_t third = order > 2 ? end[-3] : 0;
    int32_t offset = chains.heads[hash(last, second) & (chains.heads.size() - 1)];
    while (offset >= start_ + order) {
      if (text_[offset - 1] == last && (order == 1 || text_[offset - 2] == second) &&
          (order < 3 || text_[offset - 3] == third)) {
        if (!take(offset)) return;
      }
      offset = chains.before[offset - 1 - start_];
    }
  }

  void catch_up() {
    const int32_t end = size_of(text_);
    if (end - start_ > int64_t(ones_.heads.size())) {
      const size_t number = std::max<size_t>(256, std::bit_ceil(size_t(end - start_)));
      for (Chains* chains : {&ones_, &twos_}) {
        chains->heads.assign(number, 0);
        chains->before.clear();
      }
    }
    const int64_t mask = int64_t(ones_.heads.size()) - 1;
    for (int32_t offset = start_ + int32_t(ones_.before.size()); offset < end; ++offset) {
      const int64_t last = text_[offset];
      link(ones_, hash(last, 0) & mask, offset);
      if (offset > start_) {
        link(twos_, hash(last, text_[offset - 1]) & mask, offset);
      } else {
        twos_.before.push_back(0);
      }
    }
  }

  static void link(Chains& chains, int64_t head, int32_t offset) {
    chains.before.push_back(chains.heads[head]);
    chains.heads[head] = offset + 1;
  }

  const Text& text_;
  const int32_t start_;
  // Those of three tokens are few of those of two, and are found there.
  Chains ones_, twos_;
};

}  // namespace aligner
