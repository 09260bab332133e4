"""Style and script of the review page: dark and light by the reader's setting, no fonts or files from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1c1d21; --faint: #62646d; --line: #dedfe3;
  --accent: #5b2a9d; --warn: #8a4b00; --warn-paper: #fff4e2; }
@media (prefers-color-scheme: dark) { :root { --paper: #131316; --card: #1b1c20; --ink: #ececf0; --faint: #a3a5af;
  --line: #33353c; --accent: #c9a7ff; --warn: #ffc578; --warn-paper: #2b2214; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
header, main { max-width: 1560px; margin: 0 auto; padding: 0 clamp(16px, 3vw, 40px); }
header { padding-top: 36px; } main { padding-bottom: 64px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 40px 0 12px; } h2 small { color: var(--faint); font-weight: 400; font-size: 16px; }
h3 { font-size: 15px; margin: 10px 14px 4px; overflow-wrap: anywhere; }
.model { font-size: 18px; margin: 4px 0 0; } .small { color: var(--faint); font-size: 14px; margin: 6px 0; }
dl { display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 18px 0; }
dt { color: var(--faint); font-size: 13px; } dd { margin: 0; overflow-wrap: anywhere; }
.notice { color: var(--warn); background: var(--warn-paper); border-radius: 8px; padding: 10px 14px; margin: 14px 0;
  overflow-wrap: anywhere; }
.legends { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 14px 28px; }
figure { margin: 0; } figcaption { font-size: 14px; margin-bottom: 4px; }
.bar { height: 12px; border-radius: 3px; } .ticks { display: flex; justify-content: space-between; font-size: 13px;
  color: var(--faint); margin-top: 2px; }
video { width: 100%; max-width: 1120px; border-radius: 8px; background: #000; display: block; }
.scroll { overflow-x: auto; margin-bottom: 14px; } table { border-collapse: collapse; font-size: 15px; }
th, td { padding: 6px 14px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } thead th { color: var(--faint); font-size: 13px; } tbody th { text-align: left; }
th[colspan] { text-align: center; }
nav { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; color: var(--faint); font-size: 14px;
  margin-bottom: 16px; }
button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line); cursor: pointer;
  border-radius: 999px; padding: 3px 12px; }
button:hover { border-color: var(--accent); }
button[aria-pressed=true] { color: var(--paper); background: var(--accent); border-color: var(--accent); }
a:focus-visible, button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
#frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 620px), 1fr)); gap: 20px; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden;
  padding-bottom: 12px; }
article img { width: 100%; height: auto; display: block; }
.meters { display: flex; flex-wrap: wrap; gap: 2px 24px; padding: 0 14px; font-size: 13px; color: var(--faint); }
.meter { display: inline-flex; gap: 8px; align-items: center; }
.meter i { width: 72px; height: 6px; border-radius: 3px; background: var(--line); overflow: hidden; }
.meter b { display: block; height: 100%; background: var(--accent); }
"""

SCRIPT = """
const list = document.getElementById('frames');
const buttons = [...document.querySelectorAll('nav button')];
function order(button) {
  const key = button.dataset.key, sign = key === 'place' ? 1 : -1;
  const value = card => key in card.dataset ? Number(card.dataset[key]) : (key === 'place' ? Infinity : -Infinity);
  list.append(...[...list.children].sort((a, b) => sign * (value(a) - value(b)) || a.dataset.place - b.dataset.place));
  for (const other of buttons) other.setAttribute('aria-pressed', other === button);
  history.replaceState(null, '', '#' + key);
}
for (const button of buttons) button.addEventListener('click', () => order(button));
const asked = buttons.find(button => '#' + button.dataset.key === location.hash);
const first = buttons.find(button => button.textContent === 'mean entropy') || buttons[0];
if (asked) order(asked); else first.setAttribute('aria-pressed', 'true');
"""
