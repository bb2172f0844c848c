#include "report/page_style.h"

namespace headwise {

std::string_view PageStyle() {
  return R"css(:root{color-scheme:light dark;
--page:#fbfbfc;--card:#fff;--ink:#1a232c;--soft:#5b6672;--rule:#dde2e8;--grid:#e7ebef;--shade:#f1f4f7;
--link:#1a56b0;--heat:#1d4f9c;--heat-ink:#fff;--good:#14692f;--bad:#a32020;--best:#e4eefb;
--p0:#1a232c;--p1:#2061c4;--p2:#d27309;--p3:#5ca27c;--p4:#82316a;--p5:#6d5f25;--p6:#259fce;--p7:#70777f;--p8:#693023;
--p9:#460889}
@media (prefers-color-scheme:dark){:root{
--page:#14171c;--card:#1a1e25;--ink:#e8edf3;--soft:#9aa6b4;--rule:#303743;--grid:#2a303a;--shade:#20252e;
--link:#86b4ff;--heat:#7db2ff;--heat-ink:#0c1726;--good:#6cd391;--bad:#ff8f87;--best:#20344f;
--p0:#ebf3fb;--p1:#6099f9;--p2:#e27f0c;--p3:#64c998;--p4:#b9479f;--p5:#efe87c;--p6:#83d4fd;--p7:#8c9198;--p8:#a96550;
--p9:#8f63e6}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:0 20px 64px}
header{padding:22px 0 0}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:1.35rem;line-height:1.25;margin:0 0 4px;padding-top:20px;border-top:1px solid var(--rule)}
h3{font-size:1.05rem;margin:30px 0 6px}
section{margin-top:36px;scroll-margin-top:8px}
header+section{margin-top:8px}
p{margin:6px 0 10px;max-width:72ch;overflow-wrap:anywhere}
header p,.note,section>p{color:var(--soft)}
a{color:var(--link)}
nav{max-width:1120px;margin:0 auto;padding:16px 20px 0;font-size:.9rem}
nav p{margin:0;font-weight:600;color:var(--soft)}
nav ol{margin:4px 0 0;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px}
nav a{text-decoration:none;overflow-wrap:anywhere}
nav a:hover{text-decoration:underline}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:16px;margin:12px 0 18px}
.grid.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,256px),1fr))}
figure{margin:0;padding:12px 12px 10px;background:var(--card);border:1px solid var(--rule);border-radius:8px;min-width:0}
figcaption{font-weight:600;font-size:.92rem;margin:0 0 6px;overflow-wrap:anywhere}
figcaption small{display:block;font-weight:400;color:var(--soft)}
figure svg{display:block;width:100%;height:auto}
.chart>svg{max-width:560px;margin:0 auto}
.chart text{font:12.5px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.chart .tick,.chart .axis-title,.chart .empty{fill:var(--soft)}
.chart .value{font-size:12px}
.chart .dark{fill:var(--heat-ink)}
.chart .rule{fill:none;stroke:var(--grid)}
.chart .axis{fill:none;stroke:var(--soft)}
.chart .reference{fill:none;stroke:var(--soft);stroke-dasharray:2 4}
.chart .line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.chart .mark{fill:var(--c);stroke:var(--card);stroke-width:1}
.chart .error{fill:none;stroke:var(--c);stroke-width:1.3;opacity:.6}
.chart .bar{fill:var(--c)}
.chart .hit{fill:transparent}
.chart g:hover .mark{stroke:var(--ink);stroke-width:2}
.chart .heat{fill:var(--heat)}
.chart .ground{fill:var(--shade);stroke:var(--rule)}
.c0{--b:var(--p0)}.c1{--b:var(--p1)}.c2{--b:var(--p2)}.c3{--b:var(--p3)}.c4{--b:var(--p4)}
.c5{--b:var(--p5)}.c6{--b:var(--p6)}.c7{--b:var(--p7)}.c8{--b:var(--p8)}.c9{--b:var(--p9)}
.v0{--c:var(--b)}
.v1{--c:color-mix(in oklab,var(--b) 60%,var(--ink))}.v2{--c:color-mix(in oklab,var(--b) 55%,var(--card))}
.v3{--c:color-mix(in oklab,var(--b) 30%,var(--ink))}.v4{--c:color-mix(in oklab,var(--b) 78%,var(--card))}
.v5{--c:color-mix(in oklab,var(--b) 80%,var(--ink))}
.line.d1{stroke-dasharray:7 3}.line.d2{stroke-dasharray:2 3}.line.d3{stroke-dasharray:9 3 2 3}
.line.d4{stroke-dasharray:4 2}.line.d5{stroke-dasharray:12 4}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:8px 0 0;padding:0;list-style:none;font-size:.84rem}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.legend svg{width:28px;height:12px;flex:none}
.key{display:flex;align-items:center;gap:8px;font-size:.84rem;color:var(--soft);margin:4px 0}
.key i{display:inline-block;width:120px;height:12px;border:1px solid var(--rule);border-radius:3px;
background:linear-gradient(to right,transparent,var(--heat))}
.scroll{overflow-x:auto;margin:10px 0 16px;background:var(--card);border:1px solid var(--rule);border-radius:8px}
table{border-collapse:collapse;font-size:.9rem;min-width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:right;vertical-align:top;white-space:nowrap;border-top:1px solid var(--grid)}
thead th{border-top:0;vertical-align:bottom;font-weight:600;color:var(--soft);background:var(--shade);white-space:normal;
min-width:5.5em}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card);font-weight:500}
thead th:first-child{background:var(--shade)}
tr.group th{background:var(--shade);color:var(--soft);font-size:.82rem;padding:4px 12px;max-width:none}
tr.group span{position:sticky;left:12px}
tr.all td,tr.all th{font-weight:600}
td small,th small{display:block;color:var(--soft);font-size:.8em;font-weight:400}
td.best{background:var(--best);font-weight:650}
td.worse,td.better{position:relative}
td.worse::after,td.better::after{position:absolute;right:1px;top:9px;font-size:.62em}
td.worse::after{content:"▼";color:var(--bad)}
td.better::after{content:"▲";color:var(--good)}
details{margin:8px 0;border:1px solid var(--rule);border-radius:8px;background:var(--card);padding:0 14px}
details[open]{padding-bottom:10px}
summary{cursor:pointer;padding:8px 0;font-weight:500;overflow-wrap:anywhere}
summary:focus-visible,.scroll:focus-visible,a:focus-visible{outline:2px solid var(--link);outline-offset:2px}
details details{background:var(--page)}
details figure{border:0;padding:6px 0}
details .scroll{border-radius:4px}
pre{margin:2px 0 10px;padding:8px 10px;background:var(--shade);border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;font:.82rem/1.45 ui-monospace,"Cascadia Mono",Menlo,Consolas,monospace}
pre mark{background:var(--best);color:inherit;font-weight:600}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:8px 0;font-size:.88rem}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.empty-note{padding:14px;border:1px dashed var(--rule);border-radius:8px;color:var(--soft)}
figure .head-plan{width:auto;max-width:100%}
@media (max-width:560px){
main,nav{padding-left:12px;padding-right:12px}
h1{font-size:1.4rem}
figure{padding:10px 8px}
th,td{padding:5px 8px}
tbody th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:7.5em;max-width:9.5em}
.facts{grid-template-columns:1fr}
.facts dd{margin:0 0 6px}}
@media (min-width:1380px){
nav{position:fixed;top:24px;left:20px;width:210px;margin:0;padding:0;max-height:92vh;overflow-y:auto}
nav ol{flex-direction:column;gap:4px}
main{margin-left:max(250px,calc(50vw - 560px))}}
@media print{nav{display:none}.scroll{overflow:visible}}
)css";
}

}  // namespace headwise
