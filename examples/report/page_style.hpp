#pragma once

namespace report {

/// The page's only style sheet. Light and dark; radio buttons before <main> choose the setting, so no script is needed.
inline constexpr char page_style[] = R"css(
:root{color-scheme:light dark;
--page:#f7f7f4;--card:#fff;--ink:#14140f;--soft:#55544e;--faint:#8b8a82;--grid:#e4e3dc;--line:#d4d3ca;--chip:#eeede7;
--balanced:#1f6fd0;--plain:#d9561c;--kivi:#0f8a5f;--bonsai:#7a4fd0;--exact:#8b8a82;--warn:#fdf0dc;--warnline:#e2a23b;--bad:#d9561c;
--h0:#eef4fc;--h1:#dbe9fb;--h2:#bfd8f7;--h3:#a0c4f1;--h4:#7fafeb;--h5:#5c98e2;--h6:#3c80d6;--h7:#2866b8;--h8:#1a4d93;--h9:#0c326a;
--hl:#14140f;--hd:#fff}
@media(prefers-color-scheme:dark){:root{
--page:#121211;--card:#1c1c1a;--ink:#f3f2ec;--soft:#bdbcb2;--faint:#8f8e85;--grid:#2d2d2a;--line:#3b3b37;--chip:#282825;
--balanced:#5ba0f2;--plain:#ef8350;--kivi:#3fbd8c;--bonsai:#ab8df0;--exact:#8f8e85;--warn:#33280f;--warnline:#b9822b;--bad:#ef8350;
--h0:#17212f;--h1:#1a2b43;--h2:#1d375a;--h3:#214573;--h4:#27558f;--h5:#3069b0;--h6:#4a86d0;--h7:#78a9e6;--h8:#abcaf2;--h9:#e2eefc;
--hl:#f3f2ec;--hd:#10151c}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 24px}
header{padding-top:32px}
h1{font-size:27px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:21px;margin:44px 0 2px;letter-spacing:-.005em}
h3{font-size:15px;margin:0 0 2px}
p{margin:0 0 10px}
.lead{color:var(--soft);max-width:78ch}
.note{color:var(--soft);font-size:13px;max-width:130ch}
code{font:.92em ui-monospace,"DejaVu Sans Mono",Menlo,monospace}
.pick{position:absolute;opacity:0;pointer-events:none}
nav{position:sticky;top:0;z-index:2;background:var(--page);border-bottom:1px solid var(--line);margin-top:14px}
nav div{max-width:1240px;margin:0 auto;padding:9px 24px;display:flex;flex-wrap:wrap;align-items:center;gap:14px}
nav label{padding:5px 13px;border:1px solid var(--line);background:var(--card);cursor:pointer;font-size:14px}
nav label:first-of-type{border-radius:7px 0 0 7px}nav label:last-of-type{border-radius:0 7px 7px 0;margin-left:-1px}
nav label:only-of-type{border-radius:7px}
nav .labels{display:flex;padding:0;margin:0;gap:0}
#s0:checked~nav label[for=s0],#s1:checked~nav label[for=s1]{background:var(--ink);color:var(--page);border-color:var(--ink)}
#s0:focus-visible~nav label[for=s0],#s1:focus-visible~nav label[for=s1]{outline:2px solid var(--balanced);outline-offset:2px}
#s0:checked~main .s1,#s1:checked~main .s0{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft);padding:0!important;margin:0 0 0 auto!important}
.legend svg{width:14px;height:14px;vertical-align:-2px;margin-right:5px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(270px,1fr));gap:16px;margin:22px 0 0}
.card,.panel{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.card .big{font-size:29px;font-weight:650;line-height:1.15;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.card .big small{font-size:15px;font-weight:400;color:var(--soft);letter-spacing:0}
.card table{width:100%;font-size:13px;margin-top:8px}
.card td,.card th{padding:2px 0 2px 8px;text-align:right;font-weight:400}.card th{color:var(--faint);font-size:12px}
.card td:first-child,.card th:first-child{text-align:left;padding-left:0;color:var(--soft);white-space:nowrap;max-width:9.5em;overflow:hidden;text-overflow:ellipsis}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px;margin-top:16px}
.panel{margin-top:16px;min-width:0}.two .panel{margin-top:0}
.warning{background:var(--warn);border:1px solid var(--warnline);border-radius:10px;padding:11px 16px;margin-top:12px}
.chart{width:100%;height:auto;display:block;margin-top:8px}
.chart text,.multiples text,.bars text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
.chart .axis{fill:var(--soft);font-size:12px}.chart .power{font-size:8.5px}
.chart .label{fill:var(--soft);paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}.chart .label.f-balanced{fill:var(--balanced);font-weight:650}
.grid{stroke:var(--grid)}.leader{stroke:var(--faint);stroke-width:.8;fill:none;opacity:.7}
.chain{fill:none;stroke-width:1.5;opacity:.45}.chain.f-balanced{stroke:var(--balanced)}.chain.f-plain{stroke:var(--plain)}
.mark{stroke:var(--card);stroke-width:1.5}
.mark.f-balanced{fill:var(--balanced)}.mark.f-plain{fill:var(--plain)}.mark.f-kivi{fill:var(--kivi)}.mark.f-bonsai{fill:var(--bonsai)}
.series .line{fill:none;stroke-width:1.4;stroke-linejoin:round;opacity:.75}
.series.f-balanced{color:var(--balanced)}.series.f-plain{color:var(--plain)}.series.f-kivi{color:var(--kivi)}.series.f-bonsai{color:var(--bonsai)}
.series .line{stroke:currentColor}.series.f-balanced .line{stroke-width:2.2;opacity:1}
.chart:hover .series{opacity:.25}.chart .series:hover{opacity:1}.chart .series:hover .line{stroke-width:3}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.map{font-size:12px;margin-top:8px;border-spacing:2px;border-collapse:separate;width:100%}
.map th{font-weight:400;color:var(--soft);padding:0 8px 0 0;white-space:nowrap}
.map tbody th{text-align:left}.map thead th{text-align:center;padding:0 4px}
.map td{text-align:center;min-width:46px;padding:2px 4px;border-radius:3px}
.map td.mean{outline:1px solid var(--line);outline-offset:-1px}
th.f-balanced,td.f-balanced,b.f-balanced{color:var(--balanced)!important;font-weight:650!important}
b.f-plain,b.f-kivi,b.f-bonsai{font-weight:600;color:var(--ink)}
.multiples{display:flex;flex-wrap:wrap;gap:18px 26px;margin-top:10px}
.multiples figure{margin:0}.multiples svg{display:block;max-width:100%;height:auto}
figcaption{font-size:12px;color:var(--soft);margin-bottom:4px}
.scale{white-space:nowrap;display:flex;align-items:center;gap:2px;font-size:12px;color:var(--soft);margin:4px 0 0}
.scale i{width:22px;height:12px;border-radius:2px}.scale span{margin:0 6px 0 0}.scale i+span{margin-left:6px}
.bars{display:block;max-width:100%;height:auto;margin-top:8px}
.bar{fill:var(--balanced)}.bar.bad{fill:var(--bad)}.limit{stroke:var(--soft);stroke-dasharray:3 3}
.all{width:100%;font-size:12.5px;margin-top:8px}
.all th,.all td{padding:4px 7px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
.all th{color:var(--soft);font-weight:500;vertical-align:bottom}.all thead tr:first-child th{text-align:center;border-bottom:0;color:var(--faint);font-weight:400;padding-bottom:0}
.all td:first-child,.all th:first-child{text-align:left}
.all tbody tr:hover{background:var(--chip)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:6px 0 0;font-size:13px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{padding-top:28px;padding-bottom:48px;color:var(--soft);font-size:13px}
@media(prefers-color-scheme:light){.h0,.h1,.h2,.h3,.h4{color:var(--hl)}.h5,.h6,.h7,.h8,.h9{color:var(--hd)}}
@media(prefers-color-scheme:dark){.h0,.h1,.h2,.h3,.h4,.h5{color:var(--hl)}.h6,.h7,.h8,.h9{color:var(--hd)}}
.h0{background:var(--h0);fill:var(--h0)}.h1{background:var(--h1);fill:var(--h1)}.h2{background:var(--h2);fill:var(--h2)}
.h3{background:var(--h3);fill:var(--h3)}.h4{background:var(--h4);fill:var(--h4)}.h5{background:var(--h5);fill:var(--h5)}
.h6{background:var(--h6);fill:var(--h6)}.h7{background:var(--h7);fill:var(--h7)}.h8{background:var(--h8);fill:var(--h8)}.h9{background:var(--h9);fill:var(--h9)}
)css";

}  // namespace report
