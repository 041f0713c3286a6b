// What outputs are expected to go on with, as a scheduler keeps it by slot. See `core/windows` of
// the scheduler, whose Python does the same.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "column.h"
#include "tree.h"

namespace aligner {

constexpr int64_t NO_PATH = -1;

// Parents of so many nodes, or an exception.
inline void check_tree(const Column<int32_t>& parents, int64_t num_nodes) {
  bool is_tree = parents.size() == num_nodes;
  for (int64_t node = 0; node < parents.size(); ++node) {
    is_tree &= parents[node] >= NO_PARENT && parents[node] < node;
  }
  if (!is_tree) throw std::invalid_argument("parents: no tree");
}

// All nodes after a node, itself not among them.
inline std::vector<int32_t> find_subtree(const std::vector<int32_t>& parents, int32_t node) {
  const auto size = int32_t(parents.size());
  std::vector<bool> is_after(size + 1);
  is_after[node + 1] = true;
  std::vector<int32_t> nodes;
  nodes.reserve(size - (node + 1));
  for (int32_t each = node + 1; each < size; ++each) {
    if (!is_after[parents[each] + 1]) continue;
    is_after[each + 1] = true;
    nodes.push_back(each);
  }
  return nodes;
}

// Checks windows, and finds how likely their nodes are.
class WindowReader {
 public:
  WindowReader(double least_value, double least_hazard, double prior_hazard)
      : least_value_(least_value), least_hazard_(least_hazard), prior_hazard_(prior_hazard) {}

  // Returns the hazards of a window's nodes; nothing if it has a fault.
  std::optional<py::array_t<float>> find_hazards(const py::handle& token_ids,
                                                 const py::object& parents,
                                                 const py::handle& positions,
                                                 const py::handle& values, int32_t num_predicted,
                                                 int32_t num_prompt, uint32_t vocab_size) const {
    const Column<int32_t> tokens(token_ids), read_from(positions);
    const Column<float> chances(values);
    const int64_t number = tokens.size();
    if (read_from.size() != number || (chances.size() && chances.size() != number)) return {};
    for (int32_t token_id : tokens) {
      if (uint32_t(token_id) >= vocab_size) return {};
    }
    for (int32_t position : read_from) {
      if (position >= num_predicted || position < NO_POSITION - num_prompt) return {};
    }
    float before = 1;
    for (float chance : chances) {
      // What is no number is neither.
      if (!(chance >= 0 && chance <= before)) return {};
      before = chance;
    }
    py::array_t<float> hazards(number);
    float* next = hazards.mutable_data();
    // The last elements are the root's.
    std::vector<double> sums(number + 1), own(number + 1);
    for (int64_t node = 0; node < chances.size(); ++node) {
      own[node] = -std::log(double(std::max(chances[node], float(least_value_))));
    }
    const auto add = [&](int64_t node, int64_t parent) {
      double step = prior_hazard_;
      if (chances.size()) step = std::max(own[node] - own[parent], least_hazard_);
      sums[node] = sums[parent] + step;
      next[node] = float(sums[node]);
    };
    if (parents.is_none()) {
      for (int64_t node = 0; node < number; ++node) add(node, node ? node - 1 : number);
      return hazards;
    }
    const Column<int32_t> ahead(parents);
    if (ahead.size() != number) return {};
    // Of each node and the root, the last child so far, and of each node the one before it.
    std::vector<int32_t> last_children(number + 1, NO_PARENT), siblings(number);
    for (int32_t node = 0; node < number; ++node) {
      if (ahead[node] < NO_PARENT || ahead[node] >= node) return {};
      const int64_t parent = ahead[node] == NO_PARENT ? number : ahead[node];
      for (int32_t other = last_children[parent]; other != NO_PARENT; other = siblings[other]) {
        if (tokens[other] == tokens[node]) return {};
      }
      siblings[node] = last_children[parent];
      last_children[parent] = node;
      add(node, parent);
    }
    return hazards;
  }

 private:
  const double least_value_, least_hazard_, prior_hazard_;
};

// The sequences of slots, and what they are expected to go on with: the likeliest paths as planes,
// trees beside them.
class SlotPlanes {
 public:
  SlotPlanes(const py::handle& token_ids, const py::handle& expected,
             const py::handle& hazards_before, const py::handle& node_hazards,
             const py::handle& is_tree, const py::handle& num_side_nodes)
      : token_ids_(token_ids, true),
        expected_(expected, true),
        hazards_(hazards_before, true),
        node_hazards_(node_hazards, true),
        is_tree_(is_tree, true),
        num_side_nodes_(num_side_nodes, true),
        num_slots_(is_tree_.size()),
        length_(expected_.size() / num_slots_),
        most_drafts_(node_hazards_.size() / num_slots_) {
    if (token_ids_.size() != expected_.size() || hazards_.size() != expected_.size() + 1 ||
        num_side_nodes_.size() != num_slots_) {
      throw std::invalid_argument("the columns are of other slots");
    }
  }

  int64_t size() const { return int64_t(trees_.size()); }

  void remove(int64_t slot) {
    if (!trees_.erase(slot)) return;
    is_tree_.at(slot) = false;
    num_side_nodes_.at(slot) = 0;
  }

  int64_t set(int64_t slot, const py::handle& token_ids, const py::object& parents,
              const py::handle& hazards, int64_t start, int64_t length) {
    check(slot, start, length);
    const Column<int32_t> tokens(token_ids);
    const Column<float> sums(hazards);
    const int64_t number = tokens.size(), num_passed = length - start;
    if (number != sums.size()) throw std::invalid_argument("hazards: not one of each node");
    const int32_t* passed = &token_ids_[slot * length_ + start];
    if (parents.is_none()) {
      if (num_passed > number || !std::equal(passed, passed + num_passed, tokens.begin())) {
        return NO_PATH;
      }
      remove(slot);
      if (num_passed == number) return 0;
      const int64_t cell = slot * length_ + length;
      const float before = num_passed ? sums[num_passed - 1] : 0;
      hazards_[cell] = 0;
      int64_t end = length;
      for (int64_t node = num_passed; node < number && end < length_; ++node, ++end) {
        expected_[slot * length_ + end] = tokens[node];
        hazards_[slot * length_ + end + 1] = sums[node] - before;
      }
      return end;
    }
    const Column<int32_t> ahead(parents);
    check_tree(ahead, number);
    Tree tree{
        {tokens.begin(), tokens.end()}, {ahead.begin(), ahead.end()}, {sums.begin(), sums.end()}};
    if (!tree.walk(passed, num_passed)) return NO_PATH;
    return show(slot, trees_[slot] = std::move(tree), length, true);
  }

  // Returns how many of its drafts each row has at most a given hazard of: `drafts` if all.
  py::object count_worth(const py::handle& slots, const py::handle& lengths,
                         const py::object& drafts, const py::handle& depths) const {
    const Column<int64_t> of_rows(slots);
    const Column<int32_t> long_as(lengths), most(drafts);
    const Column<float> deepest(depths);
    const int64_t last = hazards_.size() - 1;
    std::vector<int32_t> worth(most.begin(), most.end());
    bool are_all = true;
    for (int64_t row = 0; row < of_rows.size(); ++row) {
      const int64_t slot = of_rows[row];
      const float depth = deepest.at(row);
      if (is_tree_.at(slot)) {
        const float* nodes = &node_hazards_[slot * most_drafts_];
        const int64_t number = std::upper_bound(nodes, nodes + most_drafts_, depth) - nodes;
        worth.at(row) = int32_t(std::min<int64_t>(worth.at(row), number));
      } else {
        // What is in flight may be assumed to go on past the longest sequence.
        const auto find = [&](int64_t cell) {
          return hazards_[std::clamp<int64_t>(cell, 0, last)];
        };
        const int64_t cell = slot * length_ + long_as.at(row);
        const float before = find(cell), reach = find(cell + worth.at(row)) - before;
        if (reach <= depth) continue;
        int32_t number = 0;
        while (number < worth[row] && find(cell + number + 1) <= before + depth) ++number;
        worth[row] = number;
      }
      are_all &= worth[row] == most[row];
    }
    if (are_all) return drafts;
    return py::array_t<int32_t>(int64_t(worth.size()), worth.data());
  }

  py::tuple follow(const py::handle& slots, const py::handle& starts, const py::handle& counts,
                   const py::handle& token_ids, const py::handle& window_ends) {
    const Column<int64_t> of_rows(slots);
    const Column<int32_t> begins(starts), numbers(counts), tokens(token_ids);
    const Column<int32_t> window_end(window_ends, true);
    const int64_t num_rows = of_rows.size();
    py::array_t<int32_t> all_inside(num_rows), all_agreed(num_rows);
    py::array_t<float> all_estimated(num_rows);
    int32_t *insides = all_inside.mutable_data(), *agreements = all_agreed.mutable_data();
    float* estimates = all_estimated.mutable_data();
    std::vector<int64_t> lost;
    const int32_t* next = tokens.begin();
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t slot = of_rows[row], start = begins.at(row), count = numbers.at(row);
      const int64_t cell = slot * length_ + start;
      check(slot, start, start + count);
      if (count > tokens.end() - next) {
        throw py::index_error("starts, counts: not in the tokens");
      }
      std::copy_n(next, count, &token_ids_[cell]);
      int32_t& window = window_end.at(slot);
      const int64_t inside = std::max<int64_t>(std::min(int64_t(window) - start, count), 0);
      const int64_t agreed = std::mismatch(next, next + inside, &expected_[cell]).first - next;
      const int64_t examined = std::min(agreed + 1, inside);
      insides[row] = int32_t(inside);
      agreements[row] = int32_t(agreed);
      estimates[row] = hazards_[cell + examined] - hazards_[cell];
      if (agreed < inside) window = 0;
      if (is_tree_[slot]) {
        Tree& tree = trees_.at(slot);
        if (!tree.walk(next, count)) {
          remove(slot);
          window = 0;
          lost.push_back(slot);
        } else if (agreed < inside) {
          window = int32_t(show(slot, tree, start + count, true));
          if (!window) lost.push_back(slot);
        } else {
          show(slot, tree, start + count, false);
        }
      }
      next += count;
    }
    return py::make_tuple(all_inside, all_agreed, all_estimated, lost);
  }

 private:
  struct Tree {
    std::vector<int32_t> token_ids, parents;
    std::vector<float> hazards;
    int32_t node = NO_PARENT;

    // Goes on by some tokens; returns whether they are a path.
    bool walk(const int32_t* next, int64_t number) {
      int32_t num_passed;
      std::tie(node, num_passed) = walk_nodes(token_ids, parents, {next, size_t(number)}, node);
      return num_passed == number;
    }
  };

  void check(int64_t slot, int64_t start, int64_t end) const {
    if (slot < 0 || slot >= num_slots_ || start < 1 || end < start || end > length_) {
      throw py::index_error("slots, starts, ends: not in the planes");
    }
  }

  // Writes what is after a tree's node, its likeliest path only if that is another one; returns
  // where that ends, 0 if nothing is left.
  int64_t show(int64_t slot, const Tree& tree, int64_t length, bool shows_path) {
    const float before = tree.node == NO_PARENT ? 0 : tree.hazards[tree.node];
    float* drafts = &node_hazards_[slot * most_drafts_];
    int64_t number = 0, end = length;
    int32_t tip = tree.node;
    float deepest = 0;
    for (int32_t node : find_subtree(tree.parents, tree.node)) {
      const float hazard = tree.hazards[node] - before;
      deepest = std::max(deepest, hazard);
      if (number < most_drafts_) drafts[number] = deepest;
      ++number;
      if (tree.parents[node] != tip) continue;
      const int64_t cell = slot * length_ + end;
      if (shows_path && end == length) hazards_[cell] = 0;
      if (shows_path && end < length_) {
        expected_[cell] = tree.token_ids[node];
        hazards_[cell + 1] = hazard;
      }
      tip = node;
      ++end;
    }
    if (number == end - length) {
      // The tree is removed, and what is left of it is a chain.
      remove(slot);
    } else {
      std::fill(drafts + std::min(number, most_drafts_), drafts + most_drafts_,
                std::numeric_limits<float>::infinity());
      is_tree_[slot] = true;
      num_side_nodes_[slot] = int32_t(number - (end - length));
    }
    return number ? std::min(end, length_) : 0;
  }

  const Column<int32_t> token_ids_, expected_;
  const Column<float> hazards_, node_hazards_;
  const Column<bool> is_tree_;
  const Column<int32_t> num_side_nodes_;
  const int64_t num_slots_, length_, most_drafts_;
  std::unordered_map<int64_t, Tree> trees_;
};

// The windows of slots as the worker has them: where their nodes were read from.
class WorkerWindows {
 public:
  explicit WorkerWindows(py::object num_nodes)
      : num_nodes(std::move(num_nodes)),
        num_nodes_(this->num_nodes, true),
        windows_(num_nodes_.size()) {}

  // By slot.
  const py::object num_nodes;

  void set(int64_t slot, const py::handle& positions, const py::object& parents) {
    const Column<int32_t> read_from(positions);
    num_nodes_.at(slot) = int32_t(read_from.size());
    Window& window = windows_[slot];
    window.positions.assign(read_from.begin(), read_from.end());
    window.parents.clear();
    if (parents.is_none()) return;
    const Column<int32_t> ahead(parents);
    check_tree(ahead, read_from.size());
    window.parents.assign(ahead.begin(), ahead.end());
  }

  std::optional<py::array_t<int32_t>> find_positions(const py::handle& slots,
                                                     const py::handle& counts,
                                                     const py::handle& nodes) const {
    const Column<int64_t> of_rows(slots);
    const Column<int32_t> numbers(counts), all(nodes);
    py::array_t<int32_t> positions(all.size());
    int32_t* next = positions.mutable_data();
    int64_t index = 0;
    for (int64_t row = 0; row < of_rows.size(); ++row) {
      const Window& window = find(of_rows[row]);
      for (int32_t left = numbers.at(row); left > 0; --left, ++index) {
        const uint32_t node = all.at(index);
        if (node >= window.positions.size()) return {};
        *next++ = window.positions[node];
      }
    }
    return positions;
  }

  std::pair<py::array_t<int64_t>, py::array_t<int32_t>> find_drafted(
      const py::handle& slots, const py::handle& nodes, const py::handle& counts) const {
    const Column<int64_t> of_rows(slots);
    const Column<int32_t> reached(nodes), numbers(counts);
    std::vector<int64_t> slots_of_drafts;
    std::vector<int32_t> positions;
    for (int64_t row = 0; row < of_rows.size(); ++row) {
      const Window& window = find(of_rows[row]);
      const int64_t node = reached.at(row), number = numbers.at(row);
      const int64_t size = window.positions.size(), first = positions.size();
      if (number < 0 || node < NO_PARENT || node + number >= size) {
        throw py::index_error("nodes: not in the window");
      }
      const auto* after = window.positions.data() + node + 1;
      positions.insert(positions.end(), after, after + number);
      slots_of_drafts.insert(slots_of_drafts.end(), number, of_rows[row]);
      if (window.parents.empty()) continue;
      const auto nodes_after = find_subtree(window.parents, int32_t(node));
      const int64_t found = std::min<int64_t>(number, nodes_after.size());
      for (int64_t each = 0; each < found; ++each) {
        positions[first + each] = window.positions[nodes_after[each]];
      }
    }
    return {py::array_t<int64_t>(int64_t(positions.size()), slots_of_drafts.data()),
            py::array_t<int32_t>(int64_t(positions.size()), positions.data())};
  }

 private:
  struct Window {
    std::vector<int32_t> positions, parents;
  };

  const Window& find(int64_t slot) const {
    if (slot < 0 || slot >= int64_t(windows_.size())) throw py::index_error("slots: there is none");
    return windows_[slot];
  }

  const Column<int32_t> num_nodes_;
  std::vector<Window> windows_;
};

}  // namespace aligner
