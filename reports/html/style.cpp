#include <fmt/format.h>

#include "reports/html/sections.h"
#include "reports/palette.h"

namespace kveval::html {
namespace {

// Text on its background is at least 4.5 : 1 in both modes; the maps' own colours are the same in both.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--fg:#191d22;--dim:#58626d;--line:#d8dee5;--card:#f5f7f9;--link:#0a58a8;
--loss:#a33b00;--gain:#0a58a8;--mark:#ffe0b0}
@media (prefers-color-scheme:dark){:root{--bg:#13161a;--fg:#e5e9ed;--dim:#9ba6b2;--line:#2e353d;--card:#1b2026;
--link:#7fbaf2;--loss:#ff9f60;--gain:#7fbaf2;--mark:#5f3d10}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.page{max-width:76rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:.5rem;background:var(--bg);padding:.25rem .5rem}
h1{font-size:1.75rem;line-height:1.2;margin:.2rem 0 .4rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:2.75rem 0 .5rem}
h3{font-size:1.05rem;margin:1.5rem 0 .4rem;overflow-wrap:anywhere}
p{margin:.4rem 0 .8rem;max-width:70ch}
.dim,.kicker,figcaption small,caption small{color:var(--dim)}
.kicker{margin:0;font-weight:600}
.notice{border-left:4px solid var(--loss);background:var(--card);padding:.6rem .9rem;max-width:none}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:1rem 0 0;padding:0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(16rem,1fr));gap:1rem;margin:1.25rem 0;padding:0;
list-style:none}
.cards li{background:var(--card);border:1px solid var(--line);border-top:4px solid var(--line);border-radius:6px;
padding:.75rem 1rem}
.cards li.worse{border-top-color:var(--loss)}
.cards h3{margin:0}
.cards p{margin:.25rem 0;font-size:.95rem}
.cards .big{font-size:1.6rem;line-height:1.25;font-variant-numeric:tabular-nums}
.worse .state{color:var(--loss);font-weight:600}
.scroll{overflow-x:auto;margin:.5rem 0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
caption{text-align:left;font-weight:600;padding:.2rem 0 .4rem}
th,td{padding:.3rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--line);white-space:nowrap}
thead th{vertical-align:bottom;white-space:normal;border-bottom:2px solid var(--dim)}
th{font-weight:600}
th.l,td.l{text-align:left}
th.span{text-align:center}
.edge{border-left:1px solid var(--dim)}
tbody th{text-align:left}
tbody tr.group th{padding-top:1.1rem;border-bottom-color:var(--dim)}
tbody tr.sub th,tbody td.sub{font-weight:400}
td.loss,.tag.loss{color:var(--loss);font-weight:600}
.tag.gain{color:var(--gain);font-weight:600}
td.answer{white-space:normal;min-width:9rem;max-width:22rem;overflow-wrap:anywhere}
code,pre{font-family:ui-monospace,"SFMono-Regular",Consolas,"DejaVu Sans Mono",monospace;font-size:.88em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.25rem 0}
mark{background:var(--mark);color:inherit;border-radius:2px}
svg.range{display:block;width:8rem;height:1.4em}
.range line{stroke:var(--dim);stroke-width:2}
.range .axis{stroke:var(--line);stroke-width:1}
.range circle{fill:var(--fg)}
.maps{display:flex;flex-wrap:wrap;gap:1.25rem 2rem;align-items:flex-start}
.pair{display:flex;flex-wrap:wrap;gap:.75rem 1rem;border:1px solid var(--line);border-radius:6px;padding:.6rem .9rem}
figure{margin:0}
figcaption{font-weight:600;margin-bottom:.35rem;max-width:20rem;overflow-wrap:anywhere}
figcaption small{display:block;font-weight:400}
table.map td,table.map th{border:2px solid var(--bg);text-align:center;min-width:4.2rem}
table.map tbody th{text-align:right;min-width:0;font-weight:400;vertical-align:middle}
table.map thead th{font-weight:400}
table.map td{padding:.5rem .4rem;vertical-align:middle;-webkit-print-color-adjust:exact;print-color-adjust:exact}
table.map small{display:block;font-size:.75rem}
td.untested{color:var(--dim);background:repeating-linear-gradient(45deg,transparent,transparent 5px,var(--line) 5px,
var(--line) 6px)}
.legend{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:.75rem 0;font-size:.9rem}
.legend table{font-size:.8rem}
.legend td{white-space:normal;padding:.15rem .5rem;border:0;min-width:3rem;text-align:center}
details{margin:.5rem 0;border:1px solid var(--line);border-radius:6px;padding:.4rem .8rem}
summary{cursor:pointer;font-weight:600;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.25rem;margin:.5rem 0}
dt{color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}
@media (max-width:40rem){dl{display:block}dd{margin-bottom:.4rem}}
@page{margin:1.2cm}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;--card:#fff;--loss:#8a3200;--gain:#0a4a8c;--mark:#ffe0b0}
body{font-size:13px}table{font-size:.8rem}th,td{padding:.2rem .35rem}
td.l code{white-space:normal;overflow-wrap:anywhere}nav,.skip{display:none}.page{max-width:none;padding:0}.scroll{overflow:visible}
figure,.cards li,tr{break-inside:avoid}h2,h3{break-after:avoid}
details::details-content{content-visibility:visible;block-size:auto}details>*{display:block}}
)css";

}  // namespace

std::string style_sheet() {
  std::string style = kStyle;
  for (int percent = 0; percent <= 100; ++percent) {
    const Rgb colour = cividis(percent);
    style += fmt::format(".c{}{{background:{};color:{}}}\n", percent, css(colour), css(text_on(colour)));
  }
  for (int percent = -100; percent <= 100; ++percent) {
    const Rgb colour = difference_colour(percent);
    style += fmt::format(".n{}{{background:{};color:{}}}\n", percent, css(colour), css(text_on(colour)));
  }
  return style;
}

}  // namespace kveval::html
