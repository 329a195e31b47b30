// Top-k in a gallery that exists as int8 only: s = p (scale_a scale_b), with p the exact product of the codes of query and row in int32.
// The order is total, as in engine/topk.h. Queries are coded by the same rule. Rows and queries that have no codes (NaN, norms from 1e18
// on) are never returned.
#pragma once

#include "engine/code_scan.h"

namespace pairloom::PAIRLOOM_ISA {

template <class Products>
class CodedTopk : CodeScan<float, Products, CodedTopk<Products>> {
  using Scan = CodeScan<float, Products, CodedTopk>;
  friend Scan;
  using Scan::topk_, Scan::m_, Scan::k_, Scan::parts_, Scan::chunk_, Scan::kGroup, Scan::in_panels, Scan::excludes, Scan::first_query_;
  using typename Scan::Block, typename Scan::Packing;

 public:
  CodedTopk(const CodedTopkCall& call, const Parallel& pool)
      : Scan(call.topk, call.codes, call.topk.gallery.rows, capacity(call.topk) * static_cast<int64_t>(sizeof(float) + sizeof(int64_t)),
             pool),
        capacity_(capacity(topk_)),
        scales_(in_panels(chunk_) * kPanelQueries),
        scores_(parts_ * chunk_ * capacity_),
        indices_(parts_ * chunk_ * capacity_),
        selections_(parts_ * chunk_) {}

  void run() { Scan::search_all(); }

 private:
  struct RowNumbers {
    float scale[kBlockRows];
  };
  struct Thread {
    Thread(const CodedTopk&, int64_t, int64_t) {}
  };

  static int64_t capacity(const TopkCall& topk) { return Selection<float>::capacity(std::min(topk.k, topk.gallery.rows)); }

  static float scale_or_nan(float scale, float residual) {
    return residual < std::numeric_limits<float>::infinity() ? scale : std::numeric_limits<float>::quiet_NaN();
  }

  void numbers_of_rows(const Records& records, int64_t count, RowNumbers& numbers) const {
    const bool cosine = topk_.similarity == Similarity::cosine;
    for (int64_t r = 0; r < count; ++r) {
      const float scale = scale_or_nan(records[kScale][r], records[kResidual][r]);
      numbers.scale[r] = cosine ? scale * records[kInverseNorm][r] : scale;
    }
  }

  void prepare(int64_t q, const CodedRow& a, int64_t p, int64_t lane) {
    scales_[p * kPanelQueries + lane] = q >= 0 ? scale_or_nan(a.scale, a.residual) : std::numeric_limits<float>::quiet_NaN();
    for (int64_t part = 0; q >= 0 && part < parts_; ++part) {
      const int64_t at = part * chunk_ + q;
      selections_[at] = {
          scores_.get() + at * capacity_, indices_.get() + at * capacity_, 0, -std::numeric_limits<float>::infinity(), nullptr, nullptr};
    }
  }

  void take(const Block& block, int64_t first, int64_t count, int64_t i, int64_t p, Thread&, int64_t part) const {
    const int64_t lanes = std::min(kPanelQueries, chunk_ - p * kPanelQueries);
    Selection<float>* selections = selections_.get() + part * chunk_ + p * kPanelQueries;
    alignas(64) float thresholds[kPanelQueries];
    for (int64_t lane = 0; lane < kPanelQueries; ++lane) {
      thresholds[lane] = lane < lanes ? selections[lane].threshold : std::numeric_limits<float>::infinity();
    }
    for (int64_t v = 0; v < kPanelQueries; v += kLanes<float>) {
      const vec<float> scale = load(scales_.get() + p * kPanelQueries + v);
      vec<float> threshold = load(thresholds + v);
      for (int64_t r = 0; r < count; ++r) {
        const Ints products = load(block.products.get() + r * kGroup + i * kPanelQueries + v);
        const vec<float> scores = Packing::values(products) * (scale * block.rows.scale[r]);
        const mask<float> better = scores > threshold;
        if (!any(better)) continue;
        for (int lane = 0; lane < kLanes<float>; ++lane) {
          if (better[lane] == 0 || v + lane >= lanes || excludes(first_query_ + p * kPanelQueries + v + lane, first + r)) continue;
          Selection<float>& best = selections[v + lane];
          const float score = scores[lane];
          best.make_room(1, k_);
          best.offer(&score, first + r, 1);
          thresholds[v + lane] = best.threshold;
        }
        threshold = load(thresholds + v);
      }
    }
  }

  void finish(int64_t begin, int64_t end) {
    Buffer<Candidate<float>> found(k_);
    for (int64_t q = begin; q < end; ++q) {
      const int64_t count = join_parts(selections_.get() + q, chunk_, parts_, k_, found.get());
      write_answer(found.get(), count, topk_.k, static_cast<float*>(topk_.scores) + (first_query_ + q) * topk_.k,
                   topk_.indices + (first_query_ + q) * topk_.k);
    }
  }

  const int64_t capacity_;
  Buffer<float> scales_;
  Buffer<float> scores_;
  Buffer<int64_t> indices_;
  Buffer<Selection<float>> selections_;
};

}  // namespace pairloom::PAIRLOOM_ISA
