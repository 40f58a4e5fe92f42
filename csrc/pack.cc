#include "pack.h"

#include <stdexcept>

#include "unpack_formats.h"

namespace pelton {

PackShape::PackShape(const std::string& format_name, int64_t n_, int64_t k_)
    : format(find_pack_format(format_name)), n(n_), k(k_) {
  if (format == nullptr) throw std::invalid_argument("there is no weight format `" + format_name + "`");
  const std::string what = "[`" + std::to_string(n) + "`, `" + std::to_string(k) + "`] as `" + format_name + "`";
  if (n <= 0 || k <= 0) throw std::invalid_argument(what + ": sizes must be positive");
  // 64 bytes per value is more than any format takes, packed or not.
  if (k > kMaxTensorBytes / 64 || n > kMaxTensorBytes / 64 / k) throw std::invalid_argument(what + ": too large");
  if (k % format->block_values != 0) {
    throw std::invalid_argument(what + ": rows must be multiples of " + std::to_string(format->block_values));
  }
  num_panels = (n + kPanelLanes - 1) / kPanelLanes;
  row_bytes = k / format->block_values * format->block_bytes;
  panel_bytes = format->panel_bytes(k);
}

void unpack(const PackShape& shape, const uint8_t* packed, float* target) {
  for (int64_t panel = 0; panel < shape.num_panels; ++panel) {
    float* rows[kPanelLanes] = {};
    for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < shape.n; ++lane) {
      rows[lane] = target + (panel * kPanelLanes + lane) * shape.k;
    }
    unpack_panel(shape.format->format, packed + panel * shape.panel_bytes, shape.k, rows);
  }
}

}  // namespace pelton
