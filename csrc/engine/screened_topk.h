// Top-k that scores an int8 copy of the gallery first and exactly only those rows that can still be among the k best. Ids and scores are
// bit for bit those of engine/topk.h.
//
//   row b = scale_b codes_b + r_b, query a likewise; s = a . b;  estimate = scale_a scale_b (codes_a . codes_b)
//   |s - estimate| <= |scale_a codes_a| |r_b| + |r_a| |b|,   and what float32 rounds in the exact kernel: (D + ..) 2^-24 |a| |b|
//
// So every score lies in [low, high]. With t the k-th largest low, k rows score t or more: a row with high < t is out, all others are
// scored by the exact kernel's own arithmetic. docs/decisions/0014 has the proof, with the other similarities and all roundings.
//
// Rows and queries of which nothing is certain (NaN, norms from 1e18 on) have the bounds -infinity and infinity. A query that keeps
// too many rows (all scores tie, say) is given to engine/topk.h.
#pragma once

#include "engine/code_products.h"
#include "engine/code_rows.h"
#include "engine/topk.h"

namespace pairloom::PAIRLOOM_ISA {

// What is certain about the score of a row with a query, p being the product of their codes:
//
//   p scale_a scale + offset_a + offset   +-   (reach_a residual + error_a norm + slack_a + slack)
//
// with these numbers of the row, and those of the query (`_a`) in PanelBounds.
struct RowBounds {
  float scale, residual, norm, offset, slack;
};

// From what is stored of a row. Scores of distances are negated squares here: the order is the same. `rounding` is (D + ..) 2^-24.
inline RowBounds bounds_of_row(Similarity similarity, float scale, float residual, float norm, float inverse_norm, float rounding) {
  constexpr float kUp = 1.0f + 1e-5f;
  if (is_distance(similarity)) {
    const float square = norm * norm;
    return {2 * scale, 2 * residual * kUp, 2 * norm * kUp, -square, 4 * rounding * square};
  }
  if (similarity == Similarity::dot) return {scale, residual, norm, 0.0f, 0.0f};
  // The kernel multiplies by the factor in its own type and rounds each product.
  const float unit = norm * inverse_norm * kUp;
  return {scale * inverse_norm, residual * inverse_norm * kUp + unit * 1e-6f, unit, 0.0f, 0.0f};
}

template <class T, class Products>
class ScreenedTopk {
  using Packing = typename Products::Packing;
  using Code = typename Products::Code;

 public:
  ScreenedTopk(const ScreenedTopkCall& call, const Parallel& pool)
      : call_(call),
        topk_(call.topk),
        pool_(pool),
        m_(topk_.gallery.rows),
        k_(std::min(topk_.k, m_)),
        depth_(call.codes.stride),
        stride_(padded_stride<T>(topk_.queries.dim)),
        rounding_((static_cast<double>(topk_.queries.dim) + 128.0) * 1.1 * 0x1p-24),
        capacity_(4 * k_ + 1024),
        blocks_((m_ + kBlockRows - 1) / kBlockRows),
        parts_(topk_.queries.rows < 2 * kGroup * pool.threads ? std::clamp<int64_t>(blocks_ / 4, 1, pool.threads) : 1),
        chunk_(queries_per_chunk()),
        queries_(chunk_ * stride_),
        panels_(in_panels(chunk_) * panel_size()),
        bounds_(in_panels(chunk_)),
        items_(parts_ * chunk_ * capacity_),
        kept_(parts_ * chunk_) {}

  void run() {
    const int64_t n = topk_.queries.rows;
    for (int64_t first = 0; first < n; first += chunk_) {
      const int64_t count = std::min(chunk_, n - first);
      prepare(first, count);
      if (k_ > 0) search(first, count);
      parallel_for(pool_, count, [&](int64_t begin, int64_t end) {
        Exact exact(stride_, topk_.gallery.dim);
        for (int64_t q = begin; q < end; ++q) finish(first + q, q, exact);
      });
    }
    for (int64_t begin = 0; begin < n;) {  // runs of queries that are left to the exact kernel
      int64_t end = begin;
      while (end < n && call_.rescored[end] == kGivenUp) call_.rescored[end++] = m_;
      if (end > begin) score_all(begin, end);
      begin = end + 1;
    }
  }

 private:
  static constexpr int64_t kBlockRows = 4 * kCodeRows;  // of the gallery, together
  static constexpr int64_t kGroupPanels = 4;            // of queries, likewise
  static constexpr int64_t kGroup = kGroupPanels * kPanelQueries;
  static constexpr int64_t kGivenUp = -1;

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

  // The exact scores of some rows.
  struct Exact {
    Exact(int64_t stride, int64_t dim) : rows(kPanel<T> * stride), panel(kPanel<T> * dim), scores(kPanel<T>) {}
    Buffer<T> rows, panel, scores;
  };

  // What a thread works on: a block of the gallery, and the products of its codes with a group of queries.
  struct Block {
    explicit Block(int64_t depth) : codes(kBlockRows * depth), products(kBlockRows * kGroup) {}
    Buffer<Code> codes;
    Buffer<int32_t> products;
    RowBounds bounds[kBlockRows];
    int32_t begin[kBlockRows];  // of the sums of a row
  };

  static int64_t in_panels(int64_t queries) { return (queries + kPanelQueries - 1) / kPanelQueries; }
  int64_t panel_size() const { return depth_ / Packing::kTogether * kPanelQueries; }
  const float* record(CodeRecord which) const { return call_.codes.records + which * m_; }

  // As many queries as items fit in 64 MiB.
  int64_t queries_per_chunk() const {
    const int64_t per_query = parts_ * capacity_ * static_cast<int64_t>(sizeof(Item));
    const int64_t fitting = (int64_t{64} << 20) / per_query / kGroup * kGroup;
    return std::min(std::clamp<int64_t>(fitting, kPanelQueries, 4096), std::max<int64_t>(topk_.queries.rows, 1));
  }

  void prepare(int64_t first, int64_t count) {
    parallel_for(pool_, in_panels(count), [&](int64_t begin, int64_t end) {
      Buffer<int8_t> codes(depth_);
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t lane = 0; lane < kPanelQueries; ++lane) {
          const int64_t q = p * kPanelQueries + lane;
          prepare_query(first, q < count ? q : -1, codes.get(), lane, bounds_[p], panels_.get() + p * panel_size());
        }
      }
    });
  }

  // Query q of the chunk into a lane; -1 is none.
  void prepare_query(int64_t first, int64_t q, int8_t* codes, int64_t lane, PanelBounds& bounds, int32_t* panel) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    CodedRow a{0.0f, 0.0f, 0.0f, 0};
    std::fill(codes, codes + depth_, int8_t{0});
    if (q >= 0) {
      T* row = queries_.get() + q * stride_;
      load_row(topk_.queries, first + q, normalizes(topk_.similarity), row, stride_);
      a = code_row(row, topk_.queries.dim, depth_, codes);
    }
    pack_query<Packing>(codes, depth_, lane, panel);
    const bool screened = q >= 0 && a.norm < infinity && 4 * k_ <= m_;
    const double norm = a.norm;
    const bool distance = is_distance(topk_.similarity);
    bounds.scale[lane] = a.scale;
    bounds.reach[lane] = static_cast<float>((norm + a.residual) * 1.001);
    bounds.error[lane] = static_cast<float>((a.residual + rounding_ * norm) * 1.001);
    bounds.offset[lane] = distance ? static_cast<float>(-norm * norm) : 0.0f;
    // What becomes too small for float32, and the rounding of the square.
    bounds.slack[lane] = static_cast<float>(1e-28 + (distance ? 4 * rounding_ * norm * norm : 0.0));
    bounds.threshold[lane] = screened ? -infinity : infinity;
    for (int64_t part = 0; q >= 0 && part < parts_; ++part) {
      const int64_t at = part * chunk_ + q;
      kept_[at] = {items_.get() + at * capacity_, 0, k_ + 64, -std::numeric_limits<double>::infinity(), !screened};
    }
  }

  void search(int64_t first, int64_t count) {
    if (parts_ > 1) {  // each thread takes a share of the gallery
      parallel_for(pool_, parts_, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          scan(first, 0, count, blocks_ * part / parts_, blocks_ * (part + 1) / parts_, kept_.get() + part * chunk_);
        }
      });
    } else {
      parallel_for(pool_, (count + kGroup - 1) / kGroup, [&](int64_t begin, int64_t end) {
        scan(first, begin * kGroup, std::min(end * kGroup, count), 0, blocks_, kept_.get());
      });
    }
  }

  void scan(int64_t first_query, int64_t q_begin, int64_t q_end, int64_t block_begin, int64_t block_end, Kept* kept) const {
    typename Products::Session session;
    Block block(depth_);
    const int64_t p_begin = q_begin / kPanelQueries, p_end = in_panels(q_end);
    Buffer<float> thresholds((p_end - p_begin) * kPanelQueries);
    for (int64_t p = p_begin; p < p_end; ++p) {
      std::copy(bounds_[p].threshold, bounds_[p].threshold + kPanelQueries, thresholds.get() + (p - p_begin) * kPanelQueries);
    }
    for (int64_t b = block_begin; b < block_end; ++b) {
      const int64_t first = b * kBlockRows, count = std::min(kBlockRows, m_ - first);
      const Code* codes = read_block(first, count, block);
      for (int64_t p = p_begin; p < p_end; p += kGroupPanels) {
        const int64_t panels = std::min(kGroupPanels, p_end - p);
        for (int64_t r = 0; r < kBlockRows; ++r) {
          std::fill(block.products.get() + r * kGroup, block.products.get() + r * kGroup + panels * kPanelQueries, block.begin[r]);
        }
        Products::multiply(session, codes, depth_, (count + kCodeRows - 1) / kCodeRows * kCodeRows, panels_.get() + p * panel_size(), panels,
                           depth_, block.products.get(), kGroup);
        for (int64_t i = 0; i < panels; ++i) {
          keep(block, first, count, i, bounds_[p + i], thresholds.get() + (p + i - p_begin) * kPanelQueries, first_query,
               (p + i) * kPanelQueries, kept);
        }
      }
    }
  }

  // Codes of `count` rows as the products take them, with zero rows behind the last, and their bounds.
  const Code* read_block(int64_t first, int64_t count, Block& block) const {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t j = first + r;
      block.bounds[r] = bounds_of_row(topk_.similarity, record(kScale)[j], record(kResidual)[j], record(kNorm)[j], record(kInverseNorm)[j],
                                      static_cast<float>(rounding_));
      block.begin[r] = Packing::kOffset * static_cast<int32_t>(record(kCodeSum)[j]);
    }
    std::fill(block.begin + count, block.begin + kBlockRows, 0);
    const int8_t* stored = call_.codes.codes + first * depth_;
    if constexpr (sizeof(Code) == 1) {
      if (count == kBlockRows) return stored;
    }
    std::copy(stored, stored + count * depth_, block.codes.get());
    std::fill(block.codes.get() + count * depth_, block.codes.get() + kBlockRows * depth_, Code{0});
    return block.codes.get();
  }

  // Offers the rows of a block whose high reaches the threshold to each query of a panel. The lanes' arithmetic is float32: it is a little
  // more generous than that of offer(), so that what is kept does not depend on it.
  void keep(const Block& block, int64_t first, int64_t count, int64_t column, const PanelBounds& bounds, float* thresholds,
            int64_t first_query, int64_t first_lane, Kept* kept) const {
    for (int64_t v = 0; v < kPanelQueries; v += kLanes<float>) {
      const vec<float> scale = load(bounds.scale + v), reach = load(bounds.reach + v);
      const vec<float> error = load(bounds.error + v) + reach * 4e-6f;
      vec<float> threshold = load(thresholds + v);
      for (int64_t r = 0; r < count; ++r) {
        const Ints products = load(block.products.get() + r * kGroup + column * kPanelQueries + v);
        const RowBounds& row = block.bounds[r];
        const vec<float> estimate = __builtin_convertvector(products, vec<float>) * (scale * row.scale);
        const vec<float> high = estimate + (reach * row.residual + (error * row.norm + (row.offset + row.slack * 1.01f)));
        const mask<float> stays = ~(high < threshold);
        if (!any(stays)) continue;
        for (int lane = 0; lane < kLanes<float>; ++lane) {
          if (stays[lane] == 0 || thresholds[v + lane] == std::numeric_limits<float>::infinity()) continue;
          const int64_t q = first_lane + v + lane;
          thresholds[v + lane] = offer(kept[q], first_query + q, first + r, products[lane], row, bounds, v + lane);
        }
        threshold = load(thresholds + v);
      }
    }
  }

  // Returns the lane's threshold from now on.
  float offer(Kept& kept, int64_t query, int64_t index, int32_t product, const RowBounds& row, const PanelBounds& bounds,
              int64_t lane) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto wide = [](float x) { return static_cast<double>(x); };
    const double estimate =
        static_cast<double>(product) * (wide(bounds.scale[lane]) * wide(row.scale)) + wide(bounds.offset[lane]) + wide(row.offset);
    const double error = wide(bounds.reach[lane]) * wide(row.residual) + wide(bounds.error[lane]) * wide(row.norm) +
                         wide(bounds.slack[lane]) + wide(row.slack);
    const bool certain = error < infinity && estimate - estimate == 0;
    const Item item{certain ? estimate - error : -infinity, certain ? estimate + error : infinity, index};
    if (!(item.high < kept.threshold) && !excludes(query, index)) {
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

  bool excludes(int64_t query, int64_t index) const {
    if (topk_.exclude_indptr == nullptr) return false;
    int64_t begin = topk_.exclude_indptr[query], end = topk_.exclude_indptr[query + 1];
    while (begin < end) {  // they rise
      const int64_t middle = begin + (end - begin) / 2;
      if (topk_.exclude_indices[middle] == index) return true;
      if (topk_.exclude_indices[middle] < index) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return false;
  }

  // Joins the parts of query q of the chunk, scores what is left exactly, sorts, pads.
  void finish(int64_t query, int64_t q, Exact& exact) {
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
    score(q, all, exact);
    write(query, all);
  }

  // The exact score of each item, to its `low`, as engine/topk.h makes it: one sum over the depth for each row, wherever its tile begins.
  void score(int64_t q, Kept& kept, Exact& exact) const {
    for (int64_t i = 0; i < kept.count; i += kPanel<T>) {
      const int64_t count = std::min(kPanel<T>, kept.count - i);
      for (int64_t j = 0; j < count; ++j) {
        load_row(topk_.gallery, kept.items[i + j].index, normalizes(topk_.similarity), exact.rows.get() + j * stride_, stride_);
      }
      pack_panel(exact.rows.get(), stride_, count, topk_.gallery.dim, exact.panel.get());
      similarity_block(topk_.similarity, queries_.get() + q * stride_, stride_, 1, exact.panel.get(), topk_.gallery.dim, 1,
                       exact.scores.get(), kPanel<T>);
      for (int64_t j = 0; j < count; ++j) kept.items[i + j].low = static_cast<double>(exact.scores[j]);
    }
  }

  struct ByScore {
    bool operator()(const Item& a, const Item& b) const { return a.low > b.low || (a.low == b.low && a.index < b.index); }
  };

  void write(int64_t query, Kept& kept) {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    int64_t returnable = 0;  // neither NaN nor -infinity
    for (int64_t i = 0; i < kept.count; ++i) {
      if (kept.items[i].low > -static_cast<double>(infinity)) kept.items[returnable++] = kept.items[i];
    }
    const int64_t found = std::min(k_, returnable);
    std::partial_sort(kept.items, kept.items + found, kept.items + returnable, ByScore());
    T* scores = static_cast<T*>(topk_.scores) + query * topk_.k;
    int64_t* indices = topk_.indices + query * topk_.k;
    for (int64_t i = 0; i < found; ++i) {
      scores[i] = static_cast<T>(kept.items[i].low);
      indices[i] = kept.items[i].index;
    }
    std::fill(scores + found, scores + topk_.k, -infinity);
    std::fill(indices + found, indices + topk_.k, int64_t{-1});
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
  const TopkCall& topk_;
  const Parallel& pool_;
  const int64_t m_, k_;
  const int64_t depth_;   // of the codes, padded
  const int64_t stride_;  // of a loaded row
  const double rounding_;  // what float32 rounds in a score, as a part of |a| |b|, with room for the arithmetic of the bounds
  const int64_t capacity_, blocks_, parts_, chunk_;
  Buffer<T> queries_;
  Buffer<int32_t> panels_;
  Buffer<PanelBounds> bounds_;
  Buffer<Item> items_;
  Buffer<Kept> kept_;
};

}  // namespace pairloom::PAIRLOOM_ISA
