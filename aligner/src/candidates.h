// What may come next: candidates, each with what its features weigh. See `drafting/`, where all of
// it is described.

#pragma once

#include <memory>
#include <memory_resource>
#include <span>

#include "following.h"
#include "weights.h"

namespace aligner {

constexpr int32_t NO_STOP = -1;
constexpr int LONG_LENGTH = 8;

// The class of each token of a vocabulary; what it lacks is of no class in particular.
struct Classes {
  std::vector<uint8_t> table;
};

// What an output may repeat, with an index of its contexts.
struct Reference {
  Text text;
  std::vector<int32_t> positions;
  int32_t num_aligned;
  int32_t context_start;
  std::vector<int32_t> starts;
  bool is_rewrite;
  bool is_chain;
  std::shared_ptr<const Classes> classes;
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const Common> common;
  ContextIndex index{text};
  std::vector<int32_t> frequent = index.find_frequent(24);
};

// A token that may come next, and where the text goes on after it.
struct Candidate {
  int32_t token_id;
  int kind;
  int length;      // Tokens before it that agree.
  int32_t offset;  // Where it stands in the text.
  int32_t stop = NO_STOP;
  int32_t resume = NO_STOP;
  double logit = 0.0;
  double odds = 0.0;
};

// Memory of one proposal, all of which is given back at once.
using Arena = std::pmr::memory_resource;
using Candidates = std::pmr::vector<Candidate>;
using Taken = std::pmr::vector<int32_t>;

// All that is looked at for candidates of the next token.
struct View {
  View(const Reference& reference, const Text& text, int32_t start, OutputIndex& output,
       const Alignment& alignment, const Template& template_)
      : reference(reference),
        text(text),
        start(start),
        end(size_of(text)),
        num_output(end - start),
        num_context(end - reference.context_start),
        output(output),
        alignment(alignment),
        template_(template_),
        logits(reference.weights->logits.data()),
        last_class(num_context ? class_of(text.back()) : 0),
        rate(alignment.rate()),
        runs(alignment.runs()),
        followed(FOLLOWED[std::min(alignment.run, MOST_LENGTH)]) {
    if (alignment.num_lost && alignment.lost_at < reference.num_aligned) {
      rejected = text[alignment.lost_at];
    }
  }

  int class_of(int32_t token_id) const {
    const std::vector<uint8_t>& table = reference.classes->table;
    return uint32_t(token_id) < table.size() ? table[token_id] : OTHER;
  }

  // The weights of the next token's class.
  const double* class_row(int kind) const {
    return logits + START_CLASS + (kind * NUM_CLASSES + last_class) * NUM_CLASSES;
  }

  // 2 if what stands at a lost offset is of the class of what was said, 1 if not; 0 for unknown.
  int compare_classes(int32_t offset, int32_t num_lost) const {
    const int32_t expected = 0 <= offset && offset < end ? text[offset] : -1;
    if (!num_lost || expected < 0) return 0;
    return class_of(expected) == class_of(text[end - std::min(num_lost, num_output)]) ? 2 : 1;
  }

  const Reference& reference;
  const Text& text;
  const int32_t start, end, num_output, num_context;
  OutputIndex& output;
  const Alignment& alignment;
  const Template& template_;
  const double* const logits;
  const int last_class, rate, runs, followed;
  int32_t rejected = -1;  // The token that was expected where the offset was lost.
};

inline int lost_bucket(int32_t num_lost) { return LOST[std::min(num_lost, MOST_LOST)]; }

inline int distance_bucket(int32_t distance) {
  return DISTANCE[std::clamp(distance, -MOST_DISTANCE, MOST_DISTANCE) + MOST_DISTANCE];
}

// Up to a quarter, up to a half, up to nine tenths, more.
inline int share_bucket(int count, int total) {
  return (4 * count > total) + (2 * count > total) + (10 * count > 9 * total);
}

// An offset, and the features of its context.
struct Place {
  int32_t offset;
  int num_features = 0;
  std::array<int, 2> features{};

  bool operator==(const Place& other) const { return offset == other.offset; }
};

using Places = Few<Place, 64>;

// Finds candidates after the same tokens, or after the same but for the last one.
class Matcher {
 public:
  explicit Matcher(const View& view)
      : view_(view),
        text_(view.text),
        logits_(view.logits),
        num_orders_(std::min(MOST_ORDER, view.num_context)) {}

  // Candidates after the tokens that the output ends with.
  void find_matches(Candidates& found) const {
    Places prompted;
    for (const Place& place : find_places()) {
      if (place.offset >= view_.end || text_[place.offset] < 0) continue;
      if (place.offset < view_.reference.num_aligned) {
        add_predicted(found, place);
      } else {
        prompted.add({place.offset});
      }
    }
    for (const Place& place : prompted) add_own(found, place, FROM_PROMPT);
    if (!view_.alignment.is_certain()) {
      int rank = 0;
      for (const Place& place : find_own_places()) add_own(found, place, RECENCY[rank++]);
    }
    apply_rules(found);
  }

  // Candidates after other tokens than the last, and the same before that. Those of the sources are
  // added to `taken`.
  void find_skipped(Candidates& found, Taken& taken) const {
    if (view_.num_context < MOST_ORDER) return;
    const int32_t* end = text_.data() + view_.end - 1;
    const int32_t last = *end;
    const Offsets offsets = view_.reference.index.find(2, end);
    for (int32_t before : offsets.nearest(view_.alignment.lost_at - 1, MOST_SKIPPED)) {
      const int32_t offset = before + 1;
      if (offset >= view_.start || has(taken, offset)) continue;
      if (std::min(text_[before], text_[offset]) < 0 || text_[before] == last) continue;
      taken.push_back(offset);
      add_skipped(found, offset);
    }
    int rank = 0;
    for (int32_t before : view_.output.find_latest(2, end, MOST_AMBIGUOUS)) {
      if (rank == MOST_OWN_SKIPPED) break;
      if (before + 1 < view_.end && text_[before] != last) {
        add_own_skipped(found, before + 1, RECENCY[rank++]);
      }
    }
  }

  static bool has(const Taken& offsets, int32_t offset) {
    return std::find(offsets.begin(), offsets.end(), offset) != offsets.end();
  }

 private:
  static constexpr std::array<int, MOST_ORDER> MOST_PLACES{4, 6, 7}, MOST_OF_CONVERSATION{3, 4, 5},
      MOST_OWN_PLACES{3, 4, 6};
  static constexpr int ENOUGH_OWN_PLACES = 8, MOST_AMBIGUOUS = 20, MOST_SKIPPED = 4,
                       MOST_OWN_SKIPPED = 3, MOST_SKIP_LENGTH = 8;

  const int32_t* end() const { return text_.data() + view_.end; }

  // Places in the sources, the cursor first.
  Places find_places() const {
    const Alignment& alignment = view_.alignment;
    const bool is_rewrite = view_.reference.is_rewrite;
    Places places;
    if (alignment.is_found() && !alignment.pending) places.add({alignment.offset});
    if (alignment.is_certain()) return places;
    for (int order = num_orders_; order > 0; --order) {
      const Offsets found = view_.reference.index.find(order, end());
      if (!found.size()) continue;
      const Chosen chosen = choose(found, order);
      const Chosen shares =
          is_rewrite ? Chosen{}
                     : find_shares(found.latest(MOST_COUNTED), chosen, order, START_SHARE);
      for (int index = 0; index < chosen.size(); ++index) {
        Place place{chosen.items[index]};
        if (!is_rewrite) {
          const int rank = std::min(found.rank(place.offset), MOST_RANK);
          place.num_features = 2;
          place.features = {START_LATEST + (order - 1) * NUM_LATEST + LATEST[rank],
                            shares.items[index]};
        }
        Place* known = std::find(places.begin(), places.end(), place);
        if (known == places.end()) {
          places.add(place);
        } else if (!known->num_features) {
          *known = place;
        }
      }
      if (order == MOST_ORDER && agrees_long(chosen)) break;
    }
    return places;
  }

  Chosen choose(const Offsets& offsets, int order) const {
    const int32_t near = view_.alignment.lost_at;
    const bool is_rewrite = view_.reference.is_rewrite;
    const int most = (is_rewrite ? MOST_PLACES : MOST_OF_CONVERSATION)[order - 1];
    Chosen merged;
    if (order == MOST_ORDER && offsets.size() > most) {
      if (!is_rewrite) merge(merged, offsets.latest(MOST_AMBIGUOUS));
      merge(merged, offsets.nearest(near, MOST_AMBIGUOUS));
      return choose_longest(text_, merged, view_.num_context, near, most);
    }
    if (!is_rewrite) merge(merged, offsets.latest(most - most / 2));
    merge(merged, offsets.nearest(near, is_rewrite ? most : most / 2));
    return merged;
  }

  static void merge(Chosen& merged, const Span& offsets) {
    for (int32_t offset : offsets) {
      if (!merged.has(offset)) merged.add(offset);
    }
  }

  // For each offset the feature of how many of the counted ones go on as it does.
  template <typename Counted>
  Chosen find_shares(const Counted& counted, const Chosen& chosen, int order, int first) const {
    Few<int32_t, MOST_COUNTED> following;
    for (int32_t offset : counted) {
      if (offset < view_.end) following.add(text_[offset]);
    }
    const int total = following.size();
    Chosen shares;
    for (int32_t offset : chosen) {
      int count = 0;
      if (offset < view_.end) {
        count = int(std::count(following.begin(), following.end(), text_[offset]));
      }
      shares.add(first + ((order - 1) * NUM_TOTALS + TOTAL[total]) * NUM_SHARES +
                 share_bucket(count, total));
    }
    return shares;
  }

  // Places in the output, those after more equal tokens first, then the latest.
  Places find_own_places() const {
    Places places;
    for (int order = num_orders_; order > 0; --order) {
      const int most = places.size() + MOST_OWN_PLACES[order - 1];
      Chosen chosen;
      for (int32_t offset : find_latest(order)) {
        if (offset >= view_.end ||
            std::find(places.begin(), places.end(), Place{offset}) != places.end()) {
          continue;
        }
        chosen.add(offset);
        if (places.size() + chosen.size() == most) break;
      }
      if (view_.reference.is_rewrite) {
        for (int32_t offset : chosen) places.add({offset});
      } else if (chosen.size()) {
        const auto counted = view_.output.find_latest(order, end(), MOST_COUNTED);
        const Chosen shares = find_shares(counted, chosen, order, START_OWN_SHARE);
        for (int index = 0; index < chosen.size(); ++index) {
          places.add({chosen.items[index], 1, {shares.items[index]}});
        }
      }
      if (places.size() >= ENOUGH_OWN_PLACES) break;
      if (order == MOST_ORDER) {
        Chosen all;
        for (const Place& place : places) all.add(place.offset);
        if (agrees_long(all)) break;
      }
    }
    return places;
  }

  // Whether as many tokens agree somewhere that few would be no evidence beside them.
  bool agrees_long(const Chosen& offsets) const {
    return view_.num_context >= LONG_LENGTH &&
           std::any_of(offsets.begin(), offsets.end(), [this](int32_t offset) {
             return count_equal(text_, offset, view_.num_context) >= LONG_LENGTH;
           });
  }

  // Offsets of the output after a context: the latest, or the longest to agree, first.
  Chosen find_latest(int order) const {
    const int most = MOST_OWN_PLACES[order - 1] + 1;
    const int looked_at = order == MOST_ORDER ? MOST_AMBIGUOUS : most;
    const auto latest = view_.output.find_latest(order, end(), looked_at);
    Chosen offsets;
    if (latest.size() <= most) {
      for (int32_t offset : latest) offsets.add(offset);
      return offsets;
    }
    for (int index = latest.size() - 1; index >= 0; --index) {
      if (latest.items[index] < view_.end) offsets.add(latest.items[index]);
    }
    return choose_longest(text_, offsets, view_.num_context, view_.end, most);
  }

  void add_predicted(Candidates& found, const Place& place) const {
    const Alignment& alignment = view_.alignment;
    const int32_t offset = place.offset, token_id = text_[offset];
    const int length = count_equal(text_, offset, view_.num_context);
    double logit = logits_[START_LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length]];
    logit += logits_[START_DISTANCE + LENGTH_CLASS[length] * NUM_DISTANCES +
                     distance_bucket(offset - alignment.lost_at)];
    logit += view_.class_row(PREDICTED)[view_.class_of(token_id)];
    for (int index = 0; index < place.num_features; ++index)
      logit += logits_[place.features[index]];
    if (token_id == view_.rejected) logit += of_rejected(PREDICTED);
    if (alignment.is_found() && offset == alignment.offset) {
      logit += logits_[START_CURSOR + LENGTH[length]];
    }
    found.push_back({token_id, PREDICTED, length, offset, NO_STOP, NO_STOP, logit});
  }

  void add_own(Candidates& found, const Place& place, int recency) const {
    const int32_t offset = place.offset, token_id = text_[offset];
    const int length = count_equal(text_, offset, view_.num_context);
    const int length_class = LENGTH_CLASS[length];
    double logit = logits_[START_LENGTH + OWN * NUM_LENGTHS + LENGTH[length]];
    logit += logits_[START_RECENCY + length_class * NUM_RECENCIES + recency];
    logit +=
        logits_[START_TEMPLATE_DISTANCE + length_class * NUM_DISTANCES + template_distance(offset)];
    logit += view_.class_row(OWN)[view_.class_of(token_id)];
    for (int index = 0; index < place.num_features; ++index)
      logit += logits_[place.features[index]];
    if (token_id == view_.rejected) logit += of_rejected(OWN);
    found.push_back({token_id, OWN, length, offset, NO_STOP, NO_STOP, logit});
  }

  void add_skipped(Candidates& found, int32_t offset) const {
    if (offset >= view_.reference.num_aligned) {
      add_own_skipped(found, offset, FROM_PROMPT);
      return;
    }
    const int length = count_equal_before(offset);
    double logit = logits_[START_LENGTH + PREDICTED_SKIP * NUM_LENGTHS + length];
    logit += logits_[START_SKIP_DISTANCE + distance_bucket(offset - view_.alignment.lost_at)];
    add_token(found, PREDICTED_SKIP, length, offset, logit);
  }

  void add_own_skipped(Candidates& found, int32_t offset, int recency) const {
    const int length = count_equal_before(offset);
    double logit = logits_[START_LENGTH + OWN_SKIP * NUM_LENGTHS + length];
    logit += logits_[START_SKIP_RECENCY + recency];
    logit += logits_[START_TEMPLATE_DISTANCE + template_distance(offset)];
    add_token(found, OWN_SKIP, length, offset, logit);
  }

  void add_token(Candidates& found, int kind, int length, int32_t offset, double logit) const {
    const int32_t token_id = text_[offset];
    logit += view_.class_row(kind)[view_.class_of(token_id)];
    if (token_id == view_.rejected) logit += of_rejected(kind);
    found.push_back({token_id, kind, length, offset, NO_STOP, NO_STOP, logit});
  }

  // Adds what rules put in place of the cursor's token.
  void apply_rules(Candidates& found) const {
    const Alignment& alignment = view_.alignment;
    const int length = std::min(alignment.run, MOST_LENGTH);
    if (alignment.pending) {
      const auto [rule, num_said, resume] = *alignment.pending;
      const int32_t offset = alignment.rules[rule].offset + num_said;
      found.insert(found.begin(), make_ruled(alignment.rules[rule], offset, resume, length));
      return;
    }
    if (!alignment.is_found() || text_[alignment.offset] < 0) return;
    const auto rules = alignment.rules.find(text_, alignment.offset);
    if (!rules.size()) return;
    const Rule& rule = alignment.rules[rules.items[0]];
    found[0].logit += logits_[START_RULE_PASSED + rule.sightings()];
    const int32_t resume = alignment.offset + rule.replaced.size();
    found.push_back(make_ruled(rule, rule.offset, resume, length));
  }

  Candidate make_ruled(const Rule& rule, int32_t offset, int32_t resume, int length) const {
    const int32_t token_id = text_[offset];
    double logit = logits_[START_LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length]];
    logit += logits_[START_CURSOR + LENGTH[length]];
    logit += logits_[START_RULE + rule.sightings()];
    logit += view_.class_row(PREDICTED)[view_.class_of(token_id)];
    return {token_id, PREDICTED, length, offset, rule.offset + rule.length, resume, logit};
  }

  double of_rejected(int kind) const {
    return logits_[START_REJECTED + kind * 2 + (view_.alignment.num_lost > 1)];
  }

  int template_distance(int32_t offset) const {
    const int32_t lost_at = view_.template_.lost_at;
    if (lost_at < 0 || offset < view_.start) return NO_DISTANCE;
    return distance_bucket(offset - lost_at);
  }

  // How many tokens before the last are equal.
  int count_equal_before(int32_t offset) const {
    const int32_t most = std::min({MOST_SKIP_LENGTH, offset - 1, view_.num_context - 1});
    int32_t length = 0;
    while (length < most && text_[offset - length - 2] == text_[view_.end - length - 2]) ++length;
    return length;
  }

  const View& view_;
  const Text& text_;
  const double* const logits_;
  const int num_orders_;
};

// Guesses candidates without agreeing tokens before them: near a lost offset, frequent and common
// ones.
class Guesser {
 public:
  explicit Guesser(const View& view) : view_(view), text_(view.text), logits_(view.logits) {}

  // The first token of each prediction.
  void guess_beginning(Candidates& found) const {
    for (int32_t offset : view_.reference.starts) {
      if (text_[offset] >= 0) {
        add(found, EXPECTED, offset, START_AHEAD + AHEAD[0], START_SAME_CLASS);
      }
    }
  }

  // What stands where the offset in the prediction was lost, and after it.
  void guess_ahead(Candidates& found, const Taken& taken) const {
    const Alignment& alignment = view_.alignment;
    if (!alignment.num_lost) return;
    const int32_t start = alignment.lost_at;
    const int lost = lost_bucket(alignment.num_lost);
    const int same = view_.compare_classes(start, alignment.num_lost);
    const int32_t end = std::min(start + MOST_AHEAD, view_.reference.num_aligned);
    for (int32_t offset = start; offset < end && text_[offset] >= 0; ++offset) {
      const int ahead = offset - start;
      if (has_before(start, offset) || Matcher::has(taken, offset)) continue;
      add(found, EXPECTED, offset, START_AHEAD + lost * NUM_AHEAD + AHEAD[ahead],
          START_SAME_CLASS + (NEAR[ahead] * NUM_LOST + lost) * 3 + same);
    }
    if (view_.last_class == NEWLINE) guess_lines(found, taken, lost);
  }

  // What stands where the offset in the earlier output was lost, and after it.
  void guess_template(Candidates& found) const {
    const Template& template_ = view_.template_;
    if (!template_.num_lost || template_.lost_at < 0) return;
    const int32_t start = template_.lost_at;
    const int lost = lost_bucket(template_.num_lost);
    const int same = view_.compare_classes(start, template_.num_lost);
    const int32_t end = std::min(start + MOST_TEMPLATE_AHEAD, view_.end);
    for (int32_t offset = start; offset < end; ++offset) {
      const int ahead = offset - start;
      if (has_before(start, offset)) continue;
      add(found, TEMPLATE, offset, START_TEMPLATE_AHEAD + lost * NUM_AHEAD + AHEAD[ahead],
          START_TEMPLATE_SAME_CLASS + (NEAR[ahead] * NUM_LOST + lost) * 3 + same);
    }
  }

  // The latest tokens of the output and the most frequent ones of the sources.
  void guess_frequent(Candidates& found) const {
    const int32_t start = std::max(view_.start, view_.end - MOST_RECENT);
    Few<int32_t, MOST_RECENT> recent;
    for (int32_t offset = view_.end - 1; offset >= start; --offset) {
      if (recent.has(text_[offset])) continue;
      recent.add(text_[offset]);
      add_frequent(found, text_[offset], offset);
    }
    for (int32_t token_id : view_.reference.frequent) {
      if (!recent.has(token_id)) add_frequent(found, token_id, NOWHERE);
    }
  }

  // What commonly follows the last tokens.
  void guess_common(Candidates& found, const Common& common) const {
    const double* row = view_.class_row(COMMON);
    common.each(text_, view_.last_class, [&](const Common::Row& each) {
      const auto [token_id, feature] = each;
      const double logit = logits_[feature] + row[view_.class_of(token_id)];
      found.push_back({token_id, COMMON, 0, NOWHERE, NO_STOP, NO_STOP, logit});
    });
  }

 private:
  static constexpr int MOST_TEMPLATE_AHEAD = 10, MOST_LINES = 3, MOST_LINE_TOKENS = 200;
  static constexpr int MOST_RECENT = 24, MOST_COUNT = 1 << (NUM_COUNTS - 2);

  void add(Candidates& found, int kind, int32_t offset, int first, int second) const {
    const int32_t token_id = text_[offset];
    double logit = logits_[first] + logits_[second];
    logit += view_.class_row(kind)[view_.class_of(token_id)];
    found.push_back({token_id, kind, 0, offset, NO_STOP, NO_STOP, logit});
  }

  void add_frequent(Candidates& found, int32_t token_id, int32_t offset) const {
    const int count =
        view_.reference.index.count(token_id) + view_.output.count(token_id, MOST_COUNT);
    const int age = offset == NOWHERE ? 0 : std::bit_width(uint32_t(view_.end - offset));
    double logit =
        logits_[START_COUNT + std::min<int>(std::bit_width(uint32_t(count)), NUM_COUNTS - 1)];
    logit += logits_[START_AGE + age];
    logit += view_.class_row(FREQUENT)[view_.class_of(token_id)];
    found.push_back({token_id, FREQUENT, 0, offset, NO_STOP, NO_STOP, logit});
  }

  // Whether the token at an offset is before it too, from another offset on.
  bool has_before(int32_t start, int32_t offset) const {
    const auto end = text_.begin() + offset;
    return std::find(text_.begin() + start, end, text_[offset]) != end;
  }

  // The beginnings of the next lines after the offset of the loss.
  void guess_lines(Candidates& found, const Taken& taken, int lost) const {
    int32_t offset = view_.alignment.lost_at;
    for (int number = 0; number < MOST_LINES; ++number) {
      offset = find_line(offset);
      if (offset < 0) return;
      if (Matcher::has(taken, offset)) continue;
      const int32_t token_id = text_[offset];
      const double logit = logits_[START_NEXT_LINE + number * NUM_LOST + lost] +
                           view_.class_row(EXPECTED)[view_.class_of(token_id)];
      found.push_back({token_id, EXPECTED, 0, offset, NO_STOP, NO_STOP, logit});
    }
  }

  // The offset after the next line end; -1 if no prediction goes on there.
  int32_t find_line(int32_t offset) const {
    const int32_t end = std::min(offset + MOST_LINE_TOKENS, view_.reference.num_aligned - 1);
    for (int32_t after = offset; after < end; ++after) {
      if (text_[after] < 0) return -1;
      if (view_.class_of(text_[after]) == NEWLINE) return text_[after + 1] >= 0 ? after + 1 : -1;
    }
    return -1;
  }

  const View& view_;
  const Text& text_;
  const double* const logits_;
};

// Candidates after tokens that are only drafted, where a branch of the tree ends.
inline void find_further(const View& view, std::span<const int32_t> drafted, Candidates& found) {
  constexpr int MOST_PLACES = 8;
  const Text& text = view.text;
  const int num_drafted = int(drafted.size());
  if (view.reference.is_rewrite || view.end + num_drafted < MOST_ORDER) return;
  std::array<int32_t, MOST_ORDER> tail;
  for (int distance = 1; distance <= MOST_ORDER; ++distance) {
    tail[MOST_ORDER - distance] = distance <= num_drafted ? drafted[num_drafted - distance]
                                                          : text[view.end + num_drafted - distance];
  }
  const int32_t* end = tail.data() + tail.size();
  const auto add = [&](const auto& offsets, int order, bool is_own) {
    Few<int32_t, MOST_PLACES> following;
    Few<Place, MOST_PLACES> latest;  // Of each token, by the offset; features are not used.
    for (int32_t offset : offsets) {
      if (offset >= view.end) continue;
      following.add(text[offset]);
      if (text[offset] < 0) continue;
      const auto is_it = [&](const Place& each) { return text[each.offset] == text[offset]; };
      Place* known = std::find_if(latest.begin(), latest.end(), is_it);
      if (known == latest.end()) {
        latest.add({offset});
      } else {
        known->offset = offset;
      }
    }
    const int first = START_FURTHER + ((order - 2) * 2 + is_own) * NUM_SHARES;
    for (const Place& each : latest) {
      const int32_t token_id = text[each.offset];
      const int count = int(std::count(following.begin(), following.end(), token_id));
      const double logit = view.logits[first + share_bucket(count, following.size())];
      found.push_back({token_id, OWN, order, each.offset, NO_STOP, NO_STOP, logit});
    }
  };
  for (int order = 3; order > 1 && found.empty(); --order) {
    add(view.reference.index.find(order, end).latest(MOST_PLACES), order, false);
    auto own = view.output.find_latest(order, end, MOST_PLACES);
    std::reverse(own.begin(), own.end());
    add(own, order, true);
  }
  if (view.reference.common) {
    view.reference.common->each_further(end[-2], end[-1], [&](const Common::Row& each) {
      const auto [token_id, feature] = each;
      const double logit = view.logits[feature + START_FURTHER_COMMON - START_COMMON];
      found.push_back({token_id, COMMON, 0, NOWHERE, NO_STOP, NO_STOP, logit});
    });
  }
}

}  // namespace aligner
