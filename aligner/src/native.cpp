// The default algorithm in C++: what `follower.py` does, and bit for bit the same drafts. Sources
// are read and weights are kept in Python; `layout.h` is made of `layout.py` when this is compiled.

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "column.h"
#include "results.h"
#include "tree.h"
#include "windows.h"

namespace py = pybind11;

namespace aligner {

// The numbers of an array of int32, copied.
Text read_column(const py::buffer& column) {
  const Column<int32_t> numbers(column);
  return {numbers.begin(), numbers.end()};
}

// Tokens of an output.
Text read_tokens(const py::buffer& column) {
  Text tokens = read_column(column);
  // One that no vocabulary has stands for all of them, so that tables stay small.
  for (int32_t& token_id : tokens) token_id = std::min(token_id, MOST_TOKEN_ID);
  return tokens;
}

template <typename Number>
py::bytes write_column(const std::vector<Number>& numbers) {
  static_assert(sizeof(Number) == 4 && std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

template <typename Number>
py::object make_array(const char* type_code, const std::vector<Number>& numbers) {
  return py::module_::import("array").attr("array")(type_code, write_column(numbers));
}

// An output, the offsets it stands at, and what may come next.
class Follower {
 public:
  explicit Follower(std::shared_ptr<const Reference> reference)
      : reference_(std::move(reference)),
        text_(reference_->text),
        start_(size_of(text_)),
        output_(text_),
        alignment_(text_, reference_->num_aligned, reference_->context_start, reference_->index),
        template_(text_, output_) {}

  Follower(const Follower&) = delete;

  int64_t num_alignments() const { return alignment_.num_searches; }

  void observe(const py::buffer& token_ids) {
    const Text tokens = read_tokens(token_ids);
    const int32_t *next = tokens.data(), *end = next + tokens.size();
    if (next != end && *std::min_element(next, end) < 0) {
      throw std::invalid_argument("token_ids: a token is negative");
    }
    while (next < end) {
      int32_t count = 0;
      if (alignment_.run >= CERTAIN_RUN) count = alignment_.count_following(next, end);
      if (count) {
        text_.insert(text_.end(), next, next + count);
        alignment_.follow(count);
        template_.leave();
        next += count;
      } else {
        text_.push_back(*next);
        template_.advance(*next);
        alignment_.advance(*next);
        ++next;
      }
    }
  }

  Draft propose(int32_t max_tokens, double min_value) {
    if (max_tokens < 1) throw std::invalid_argument("max_tokens: must be at least 1");
    const View view(*reference_, text_, start_, output_, alignment_, template_);
    std::array<std::byte, 16384> memory;
    std::pmr::monotonic_buffer_resource arena(memory.data(), memory.size());
    Candidates candidates(&arena);
    candidates.reserve(32);
    const int longest = find_candidates(view, min_value, candidates);
    TreeGrower grower(view, max_tokens, min_value, arena);
    return grower.grow(candidates, weigh_none(view, longest));
  }

 private:
  static constexpr double FREQUENT_VALUE = 0.02;
  static constexpr int FREQUENT_RUN = 6;

  // Finds what may come next, likely or not; returns the most tokens that agree before it.
  int find_candidates(const View& view, double min_value, Candidates& found) const {
    const Guesser guesser(view);
    if (reference_->is_rewrite && !view.num_output) {
      guesser.guess_beginning(found);
      return 0;
    }
    Matcher matcher(view);
    matcher.find_matches(found);
    const int run = view.alignment.run;
    int longest = 0;
    for (const Candidate& each : found) longest = std::max(longest, each.length);
    if (!alignment_.is_certain() && longest < LONG_LENGTH) {
      Taken taken(found.get_allocator().resource());
      for (const Candidate& each : found) {
        if (each.offset < start_) taken.push_back(each.offset);
      }
      matcher.find_skipped(found, taken);
      guesser.guess_template(found);
      if (reference_->is_rewrite) {
        guesser.guess_ahead(found, taken);
      } else if (reference_->common) {
        guesser.guess_common(found, *reference_->common);
      }
    }
    if (run < FREQUENT_RUN && min_value < FREQUENT_VALUE) guesser.guess_frequent(found);
    return longest;
  }

  // The logit of none of the candidates being right.
  static double weigh_none(const View& view, int longest) {
    double logit = view.logits[START_NONE];
    logit += view.logits[START_NONE_LENGTH + LENGTH[std::min(view.alignment.run, MOST_LENGTH)]];
    logit += view.logits[START_NONE_CLASS + view.last_class];
    logit += view.logits[START_NONE_LOST + lost_bucket(view.alignment.num_lost)];
    logit += view.logits[START_NONE_LONGEST + LENGTH[longest]];
    return logit;
  }

  const std::shared_ptr<const Reference> reference_;
  Text text_;
  const int32_t start_;
  OutputIndex output_;
  Alignment alignment_;
  Template template_;
};

std::shared_ptr<Reference> make_reference(const py::buffer& token_ids, const py::buffer& positions,
                                          int32_t num_aligned, int32_t context_start,
                                          std::vector<int32_t> starts, bool is_rewrite,
                                          bool is_chain, std::shared_ptr<const Classes> classes,
                                          std::shared_ptr<const Weights> weights,
                                          std::shared_ptr<const Common> common) {
  Text text = read_column(token_ids);
  const int32_t number = size_of(text);
  const auto is_beyond = [&](int32_t offset) { return offset < 0 || offset >= number; };
  if (number && *std::max_element(text.begin(), text.end()) > MOST_TOKEN_ID) {
    throw std::invalid_argument("sources: a token is larger than " + std::to_string(MOST_TOKEN_ID));
  }
  if (number && *std::min_element(text.begin(), text.end()) < SEPARATOR) {
    throw std::invalid_argument("sources: a token is negative");
  }
  if (num_aligned < 0 || num_aligned > number || context_start < 0 || context_start > number ||
      std::any_of(starts.begin(), starts.end(), is_beyond)) {
    throw std::invalid_argument("sources: an offset is not in them");
  }
  return std::make_shared<Reference>(Reference{
      std::move(text), read_column(positions), num_aligned, context_start, std::move(starts),
      is_rewrite, is_chain, std::move(classes), std::move(weights), std::move(common)});
}

}  // namespace aligner

PYBIND11_MODULE(native, module) {
  using namespace aligner;

  py::class_<Weights, std::shared_ptr<Weights>>(module, "Weights")
      .def(py::init<std::vector<double>>(), py::arg("logits"));
  py::class_<Common, std::shared_ptr<Common>>(module, "Common")
      .def(py::init<Common::Table, Common::Table, Common::Table>(), py::arg("twos"),
           py::arg("ones"), py::arg("classes"));
  py::class_<Classes, std::shared_ptr<Classes>>(module, "Classes")
      .def(py::init([](const std::string& table) {
             return std::make_shared<Classes>(Classes{{table.begin(), table.end()}});
           }),
           py::arg("table"));
  py::class_<Reference, std::shared_ptr<Reference>>(module, "Reference")
      .def(py::init(&make_reference), py::arg("token_ids"), py::arg("positions"),
           py::arg("num_aligned"), py::arg("context_start"), py::arg("starts"),
           py::arg("is_rewrite"), py::arg("is_chain"), py::arg("classes"), py::arg("weights"),
           py::arg("common"))
      .def_property_readonly(
          "num_bytes", [](const Reference& self) { return 4096 + 64 * int64_t(self.text.size()); })
      .def("follow", [](std::shared_ptr<Reference> self) {
        return std::make_unique<Follower>(std::move(self));
      });
  py::class_<Follower>(module, "Follower")
      .def_property_readonly("num_alignments", &Follower::num_alignments)
      .def("observe", &Follower::observe, py::arg("token_ids"))
      .def("propose", &Follower::propose, py::arg("max_tokens"), py::arg("min_value"));
  py::class_<Draft>(module, "Draft")
      .def("__len__", &Draft::size)
      .def(py::self == py::self)
      .def_property_readonly("is_chain", &Draft::is_chain)
      .def_property_readonly("token_ids",
                             [](const Draft& self) { return make_array("i", self.token_ids); })
      .def_property_readonly("parents",
                             [](const Draft& self) { return make_array("i", self.parents); })
      .def_property_readonly("positions",
                             [](const Draft& self) { return make_array("i", self.positions); })
      .def_property_readonly("values",
                             [](const Draft& self) { return make_array("f", self.values); })
      .def("pack",
           [](const Draft& self) {
             const bool is_chain = self.is_chain();
             return py::make_tuple(write_column(self.token_ids),
                                   is_chain ? py::bytes() : write_column(self.parents),
                                   write_column(self.positions), write_column(self.values));
           })
      .def(
          "walk",
          [](const Draft& self, const py::buffer& token_ids, int32_t node) {
            if (node < NO_PARENT || node >= self.size()) throw py::index_error("node: is none");
            return self.walk(read_column(token_ids), node);
          },
          py::arg("token_ids"), py::arg("node"))
      .def(
          "find_height",
          [](const Draft& self, int32_t node) {
            if (node < NO_PARENT || node >= self.size()) throw py::index_error("node: is none");
            return self.find_height(node);
          },
          py::arg("node"));
  py::class_<WindowReader>(module, "WindowReader")
      .def(py::init<double, double, double>())
      .def("find_hazards", &WindowReader::find_hazards);
  py::class_<SlotPlanes>(module, "SlotPlanes")
      .def(py::init<py::handle, py::handle, py::handle, py::handle, py::handle, py::handle>())
      .def("__len__", &SlotPlanes::size)
      .def("set", &SlotPlanes::set)
      .def("remove", &SlotPlanes::remove)
      .def("count_worth", &SlotPlanes::count_worth)
      .def("follow", &SlotPlanes::follow);
  py::class_<WorkerWindows>(module, "WorkerWindows")
      .def(py::init<py::object>())
      .def_readonly("num_nodes", &WorkerWindows::num_nodes)
      .def("set", &WorkerWindows::set)
      .def("find_positions", &WorkerWindows::find_positions)
      .def("find_drafted", &WorkerWindows::find_drafted);
  module.def("fits_plan", &fits_plan);
}
