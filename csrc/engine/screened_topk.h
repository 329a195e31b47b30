// Top-k that scores a copy of the gallery in few bits first and exactly only those rows that can still be among the k best. Ids and scores
// are bit for bit those of engine/topk.h.
//
//   row b = scale_b codes_b + r_b, query a likewise; s = a . b;  estimate = scale_a scale_b (codes_a . codes_b)
//   |s - estimate| <= |scale_a codes_a| |r_b| + |r_a| |b|,   and what float32 rounds in the exact kernel: (D + ..) 2^-24 |a| |b|
//
// So every score lies in [low, high]. With t the k-th largest low, k rows score t or more: a row with high < t is out, all others are
// scored by the exact kernel's own arithmetic. docs/decisions/0016 has the proof, with the other similarities and all roundings.
//
// Rows and queries of which nothing is certain (NaN, norms from 1e18 on) have the bounds -infinity and infinity. A query that keeps
// too many rows (all scores tie, say) is given to engine/topk.h.
#pragma once

#include "engine/code_scan.h"

namespace pairloom::PAIRLOOM_ISA {

// What is certain about the score of a row with a query, p being the product of their codes:
//
//   p scale_a scale + offset_a + offset   +-   (reach_a residual + error_a norm + slack_a + slack)
//
// with these numbers of the row, and those of the query (`_a`) in PanelBounds.
struct RowBounds {
  alignas(64) float scale[kBlockRows];
  float residual[kBlockRows];
  float norm[kBlockRows];
  float offset[kBlockRows];
  float slack[kBlockRows];
};

// From what is stored of rows. Scores of distances are negated squares here: the order is the same. `rounding` is (D + ..) 2^-24.
inline void bounds_of_rows(Similarity similarity, const Records& records, int64_t count, float rounding, RowBounds& out) {
  const float *scale = records[kScale], *residual = records[kResidual], *norm = records[kNorm], *inverse_norm = records[kInverseNorm];
  constexpr float kUp = 1.0f + 1e-5f;
  std::fill(out.offset, out.offset + count, 0.0f);
  std::fill(out.slack, out.slack + count, 0.0f);
  if (is_distance(similarity)) {
    for (int64_t r = 0; r < count; ++r) {
      const float square = norm[r] * norm[r];
      out.scale[r] = 2 * scale[r];
      out.residual[r] = 2 * residual[r] * kUp;
      out.norm[r] = 2 * norm[r] * kUp;
      out.offset[r] = -square;
      out.slack[r] = 4 * rounding * square;
    }
  } else if (similarity == Similarity::dot) {
    std::copy(scale, scale + count, out.scale);
    std::copy(residual, residual + count, out.residual);
    std::copy(norm, norm + count, out.norm);
  } else {  // the kernel multiplies by the factor in its own type and rounds each product
    for (int64_t r = 0; r < count; ++r) {
      const float unit = norm[r] * inverse_norm[r] * kUp;
      out.scale[r] = scale[r] * inverse_norm[r];
      out.residual[r] = residual[r] * inverse_norm[r] * kUp + unit * 1e-6f;
      out.norm[r] = unit;
    }
  }
}

template <class T, class Products>
class ScreenedTopk : CodeScan<T, Products, ScreenedTopk<T, Products>> {
  using Scan = CodeScan<T, Products, ScreenedTopk>;
  friend Scan;
  using Scan::topk_, Scan::pool_, Scan::m_, Scan::k_, Scan::stride_, Scan::parts_, Scan::chunk_, Scan::queries_, Scan::kGroup,
      Scan::in_panels, Scan::excludes, Scan::first_query_;
  using typename Scan::Block, typename Scan::Packing, typename Scan::Stored;

 public:
  ScreenedTopk(const ScreenedTopkCall& call, const Parallel& pool)
      : Scan(call.topk, call.codes, call.topk.gallery.rows, capacity(call.topk) * static_cast<int64_t>(sizeof(Item)), pool),
        call_(call),
        rounding_((static_cast<double>(topk_.queries.dim) + 128.0) * (sizeof(Stored) == 1 ? 1.1 : 2.2) * 0x1p-24),
        capacity_(capacity(topk_)),
        bounds_(in_panels(chunk_)),
        items_(parts_ * chunk_ * capacity_),
        kept_(parts_ * chunk_) {}

  void run() {
    Scan::search_all();
    const int64_t n = topk_.queries.rows;
    for (int64_t begin = 0; begin < n;) {  // runs of queries that are left to the exact kernel
      int64_t end = begin;
      while (end < n && call_.rescored[end] == kGivenUp) call_.rescored[end++] = m_;
      if (end > begin) score_all(begin, end);
      begin = end + 1;
    }
  }

 private:
  static constexpr int64_t kGivenUp = -1;
  using RowNumbers = RowBounds;

  struct Item {
    double low, high;
    int64_t index;
  };
  struct ByLow {
    bool operator()(const Item& a, const Item& b) const { return a.low > b.low; }
  };
  struct ByIndex {
    bool operator()(const Item& a, const Item& b) const { return a.index < b.index; }
  };
  // The rows that a query keeps: those whose high is not below its threshold, and some that came since that rose.
  struct Kept {
    Item* items;
    int64_t query;
    int64_t count;
    int64_t next_look;  // at this count
    double threshold;   // the k-th largest low so far
    bool given_up;

    void look(int64_t k) {
      if (count < k) return;
      std::nth_element(items, items + (k - 1), items + count, ByLow());
      threshold = items[k - 1].low > threshold ? items[k - 1].low : threshold;
      int64_t left = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (!(items[i].high < threshold)) items[left++] = items[i];
      }
      count = left;
    }
  };

  // Of the queries of a panel, one in each lane. `threshold` is at infinity where nothing is to be kept.
  struct alignas(64) PanelBounds {
    float scale[kPanelQueries], reach[kPanelQueries], error[kPanelQueries], offset[kPanelQueries], slack[kPanelQueries];
    float threshold[kPanelQueries];
  };

  // Thresholds as the lanes see them: each part of the gallery has its own.
  struct Thread {
    Thread(const ScreenedTopk& search, int64_t p_begin, int64_t p_end) : first(p_begin), thresholds((p_end - p_begin) * kPanelQueries) {
      for (int64_t p = p_begin; p < p_end; ++p) {
        const float* begin = search.bounds_[p].threshold;
        std::copy(begin, begin + kPanelQueries, of_panel(p));
      }
    }
    float* of_panel(int64_t p) const { return thresholds.get() + (p - first) * kPanelQueries; }
    int64_t first;
    Buffer<float> thresholds;
  };

  // The exact scores of some rows.
  struct Exact {
    Exact(int64_t stride, int64_t dim) : rows(kPanel<T> * stride), panel(kPanel<T> * dim), scores(kPanel<T>) {}
    Buffer<T> rows, panel, scores;
  };

  static int64_t capacity(const TopkCall& topk) { return 4 * std::min(topk.k, topk.gallery.rows) + 1024; }

  void numbers_of_rows(const Records& records, int64_t count, RowBounds& bounds) const {
    bounds_of_rows(topk_.similarity, records, count, static_cast<float>(rounding_), bounds);
  }

  void prepare(int64_t q, const CodedRow& a, int64_t p, int64_t lane) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    PanelBounds& bounds = bounds_[p];
    const bool screened = q >= 0 && a.norm < infinity && 4 * k_ <= m_;
    const double norm = static_cast<double>(a.norm), residual = static_cast<double>(a.residual);
    const bool distance = is_distance(topk_.similarity);
    bounds.scale[lane] = a.scale;
    bounds.reach[lane] = static_cast<float>((norm + residual) * 1.001);
    bounds.error[lane] = static_cast<float>((residual + rounding_ * norm) * 1.001);
    bounds.offset[lane] = distance ? static_cast<float>(-norm * norm) : 0.0f;
    // What becomes too small for float32, and the rounding of the square.
    bounds.slack[lane] = static_cast<float>(1e-28 + (distance ? 4 * rounding_ * norm * norm : 0.0));
    bounds.threshold[lane] = screened ? -infinity : infinity;
    for (int64_t part = 0; q >= 0 && part < parts_; ++part) {
      const int64_t at = part * chunk_ + q;
      kept_[at] = {items_.get() + at * capacity_, first_query_ + q, 0, k_ + 64, -std::numeric_limits<double>::infinity(), !screened};
    }
  }

  // Offers the rows of a block whose high reaches the threshold to each query of a panel. The lanes' arithmetic is float32: it is a little
  // more generous than that of offer(), so that what is kept does not depend on it.
  void take(const Block& block, int64_t first, int64_t count, int64_t i, int64_t p, Thread& thread, int64_t part) const {
    const PanelBounds& bounds = bounds_[p];
    float* thresholds = thread.of_panel(p);
    for (int64_t v = 0; v < kPanelQueries; v += kLanes<float>) {
      const vec<float> scale = load(bounds.scale + v), reach = load(bounds.reach + v);
      const vec<float> error = load(bounds.error + v) + reach * 4e-6f;
      vec<float> threshold = load(thresholds + v);
      for (int64_t r = 0; r < count; ++r) {
        const Ints products = load(block.products.get() + r * kGroup + i * kPanelQueries + v);
        const RowBounds& rows = block.rows;
        const vec<float> estimate = Packing::values(products) * (scale * rows.scale[r]);
        const vec<float> high = estimate + (reach * rows.residual[r] + (error * rows.norm[r] + (rows.offset[r] + rows.slack[r] * 1.01f)));
        const mask<float> stays = ~(high < threshold);
        if (!any(stays)) continue;
        for (int lane = 0; lane < kLanes<float>; ++lane) {
          float& own = thresholds[v + lane];
          if (stays[lane] == 0 || own == std::numeric_limits<float>::infinity()) continue;
          Kept& kept = kept_[part * chunk_ + p * kPanelQueries + v + lane];
          own = offer(kept, first, r, Packing::value(products[lane]), rows, bounds, v + lane);
        }
        threshold = load(thresholds + v);
      }
    }
  }

  // Returns the lane's threshold from now on.
  float offer(Kept& kept, int64_t first, int64_t r, double product, const RowBounds& rows, const PanelBounds& bounds, int64_t lane) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto wide = [](float x) { return static_cast<double>(x); };
    const double estimate = product * (wide(bounds.scale[lane]) * wide(rows.scale[r])) + wide(bounds.offset[lane]) + wide(rows.offset[r]);
    const double error = wide(bounds.reach[lane]) * wide(rows.residual[r]) + wide(bounds.error[lane]) * wide(rows.norm[r]) +
                         wide(bounds.slack[lane]) + wide(rows.slack[r]);
    const int64_t index = first + r;
    const bool certain = error < infinity && estimate - estimate == 0;
    const Item item{certain ? estimate - error : -infinity, certain ? estimate + error : infinity, index};
    if (!(item.high < kept.threshold) && !excludes(kept.query, index)) {
      kept.items[kept.count++] = item;
      if (kept.count == kept.next_look) {
        kept.look(k_);
        kept.next_look = std::min(capacity_, kept.count + std::max<int64_t>(kept.count / 2, 64));
        if (kept.count > capacity_ / 4 * 3) kept.given_up = true;
      }
    }
    if (kept.given_up) return std::numeric_limits<float>::infinity();
    const double offset = wide(bounds.offset[lane]) + wide(bounds.slack[lane]);
    return static_cast<float>(kept.threshold - offset - 1e-6 * ((kept.threshold < 0 ? -kept.threshold : kept.threshold) - offset));
  }

  void finish(int64_t begin, int64_t end) {
    Exact exact(stride_, topk_.gallery.dim);
    for (int64_t q = begin; q < end; ++q) answer(first_query_ + q, q, exact);
  }

  // Joins the parts of query q of the chunk, scores what is left exactly, sorts, pads.
  void answer(int64_t query, int64_t q, Exact& exact) {
    Kept all = kept_[q];
    bool given_up = all.given_up && k_ > 0;
    int64_t total = all.count;
    for (int64_t part = 1; part < parts_; ++part) {
      given_up |= kept_[part * chunk_ + q].given_up && k_ > 0;
      total += kept_[part * chunk_ + q].count;
    }
    call_.rescored[query] = given_up ? kGivenUp : 0;
    if (given_up) return;
    Buffer<Item> joined(parts_ > 1 ? total : 0);
    if (parts_ > 1) {
      Item* end = joined.get();
      for (int64_t part = 0; part < parts_; ++part) {
        const Kept& kept = kept_[part * chunk_ + q];
        end = std::copy(kept.items, kept.items + kept.count, end);
        all.threshold = kept.threshold > all.threshold ? kept.threshold : all.threshold;
      }
      all.items = joined.get();
      all.count = total;
    }
    if (k_ > 0) all.look(k_);
    std::sort(all.items, all.items + all.count, ByIndex());
    call_.rescored[query] = all.count;
    Buffer<Candidate<T>> found(all.count);
    const int64_t count = score(q, all, exact, found.get());
    std::partial_sort(found.get(), found.get() + std::min(k_, count), found.get() + count, Better());
    write_answer(found.get(), std::min(k_, count), topk_.k, static_cast<T*>(topk_.scores) + query * topk_.k,
                 topk_.indices + query * topk_.k);
  }

  // The items that can be returned, with their exact scores as engine/topk.h makes them: one sum over the depth for each row, wherever its
  // tile begins. Returns how many there are.
  int64_t score(int64_t q, const Kept& kept, Exact& exact, Candidate<T>* found) const {
    int64_t end = 0;
    for (int64_t i = 0; i < kept.count; i += kPanel<T>) {
      const int64_t count = std::min(kPanel<T>, kept.count - i);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t later = kept.items[i + std::min(j + 2, count - 1)].index;
        copy_row(topk_.gallery, kept.items[i + j].index, exact.rows.get() + j * stride_, later);
      }
      const RowsOf<T> rows{exact.rows.get(), stride_};
      T factors[kPanel<T>];
      row_factors(rows, count, topk_.gallery.dim, normalizes(topk_.similarity), factors);
      pack_panel(rows, count, topk_.gallery.dim, factors, exact.panel.get());
      similarity_block(topk_.similarity, queries_.get() + q * stride_, stride_, 1, exact.panel.get(), topk_.gallery.dim, 1,
                       exact.scores.get(), kPanel<T>);
      for (int64_t j = 0; j < count; ++j) {  // neither NaN nor -infinity
        if (exact.scores[j] > -std::numeric_limits<T>::infinity()) found[end++] = {exact.scores[j], kept.items[i + j].index};
      }
    }
    return end;
  }

  void score_all(int64_t begin, int64_t end) const {
    TopkCall part = topk_;
    const int64_t size = topk_.queries.dtype == DType::f64 ? 8 : topk_.queries.dtype == DType::f32 ? 4 : 2;
    part.queries.data = static_cast<const char*>(topk_.queries.data) + begin * topk_.queries.row_stride * size;
    part.queries.rows = end - begin;
    part.scores = static_cast<T*>(topk_.scores) + begin * topk_.k;
    part.indices = topk_.indices + begin * topk_.k;
    if (topk_.exclude_indptr != nullptr) part.exclude_indptr = topk_.exclude_indptr + begin;
    Topk<T>(part, pool_).run();
  }

  const ScreenedTopkCall& call_;
  const double rounding_;  // what float32 rounds in a score (and in a product of bfloat16 codes), as a part of |a| |b|, and then some
  const int64_t capacity_;
  Buffer<PanelBounds> bounds_;
  Buffer<Item> items_;
  Buffer<Kept> kept_;
};

}  // namespace pairloom::PAIRLOOM_ISA
