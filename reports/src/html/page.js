'use strict';
(() => {
  const root = document.documentElement;
  root.classList.add('js');
  const pages = [...document.querySelectorAll('.page')];
  const rows = [...document.querySelectorAll('#trials tbody tr')];
  const q = document.getElementById('q');
  const keep = (key, value) => { try { return value === undefined ? localStorage.getItem(key) : localStorage.setItem(key, value); } catch { return null; } };

  // One page at a time: the part of the address after # is a trial's name.
  const wanted = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return ''; } };
  const title = document.title;
  let shown = null;
  function show(focus) {
    const name = wanted();
    if (name === 'main') return;
    const page = pages.find(p => p.dataset.page === name) || pages[0];
    if (page === shown) return;
    shown = page;
    pages.forEach(p => { p.hidden = p !== page; });
    document.title = page.dataset.page ? page.dataset.page + ' – ' + title : title;
    if (focus) { scrollTo(0, 0); page.querySelector('h1').focus({ preventScroll: true }); }
  }
  addEventListener('hashchange', () => show(true));
  show(false);

  // Filter.
  const picks = [...document.querySelectorAll('.pick')];
  const output = document.getElementById('shown');
  function filter() {
    const words = q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(picks.filter(p => p.getAttribute('aria-pressed') === 'false').map(p => p.dataset.verdict));
    let n = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = off.has(row.dataset.verdict) || !words.every(w => text.includes(w));
      n += !row.hidden;
    }
    output.textContent = n === rows.length ? n + ' trials' : n + ' of ' + rows.length + ' trials';
  }
  if (q) {
    q.addEventListener('input', filter);
    q.form.addEventListener('submit', e => e.preventDefault());
    for (const pick of picks) pick.addEventListener('click', () => {
      pick.setAttribute('aria-pressed', String(pick.getAttribute('aria-pressed') === 'false'));
      filter();
    });
    filter();
  }

  // Sort: names as texts, everything else as numbers; a second press turns it round. Numbers begin with the greatest.
  const heads = [...document.querySelectorAll('#trials th[data-key]')];
  for (const head of heads) head.querySelector('button').addEventListener('click', () => {
    const key = head.dataset.key;
    const text = key === 'name';
    const of = row => key === 'verdict' ? Number(row.dataset.rank) : text ? row.dataset.name : Number(row.dataset[key]);
    const up = text || key === 'verdict' || key === 'rank';
    const now = head.getAttribute('aria-sort');
    const ascending = now ? now === 'descending' : up;
    heads.forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
    const less = (a, b) => text ? (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : 0) : of(a) - of(b);
    rows.sort((a, b) => ascending ? less(a, b) : less(b, a));
    rows[0]?.parentNode.append(...rows);
  });

  // Theme.
  const theme = document.getElementById('theme');
  const themes = ['auto', 'light', 'dark'];
  function paint(name) {
    if (name === 'auto') delete root.dataset.theme; else root.dataset.theme = name;
    theme.textContent = 'Theme: ' + name;
  }
  let now = themes.includes(keep('podlab-theme')) ? keep('podlab-theme') : 'auto';
  paint(now);
  theme.addEventListener('click', () => {
    now = themes[(themes.indexOf(now) + 1) % themes.length];
    keep('podlab-theme', now);
    paint(now);
  });

  // Copying.
  for (const button of document.querySelectorAll('.copy')) button.addEventListener('click', async () => {
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = 'Copied'; } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = 'Selected';
    }
  });

  // Keys.
  const keys = document.getElementById('keys');
  const single = document.getElementById('single');
  single.checked = keep('podlab-keys') !== 'off';
  single.addEventListener('change', () => keep('podlab-keys', single.checked ? 'on' : 'off'));
  document.getElementById('help').addEventListener('click', () => keys.showModal());
  const order = () => rows.filter(r => !r.hidden);
  function step(by, wrong) {
    const list = order().filter(r => !wrong || !['passed', 'skipped'].includes(r.dataset.verdict));
    if (!list.length) return;
    if (shown.dataset.page) {
      const i = list.findIndex(r => r.dataset.name === shown.dataset.page);
      const next = list[i < 0 ? (by > 0 ? 0 : list.length - 1) : i + by];
      if (next) location.hash = next.querySelector('a').getAttribute('href');
      return;
    }
    const all = order();
    const at = all.indexOf(document.activeElement.closest ? document.activeElement.closest('#trials tbody tr') : null);
    const next = by > 0 ? list.find(r => all.indexOf(r) > at) : list.findLast(r => at < 0 || all.indexOf(r) < at);
    next?.querySelector('a').focus();
  }
  addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey || keys.open) return;
    const typing = e.target.matches?.('input, textarea, select');
    if (typing) { if (e.key === 'Escape') { e.target.blur(); } return; }
    if (!single.checked) return;
    const act = { '/': () => { if (q) { location.hash = ''; show(false); q.focus(); q.select(); } }, j: () => step(1), k: () => step(-1),
      n: () => step(1, true), p: () => step(-1, true), u: () => { location.hash = ''; }, '?': () => keys.showModal() }[e.key];
    if (act) { e.preventDefault(); act(); }
  });

  // What is folded up is no use on paper.
  const closed = new Set();
  addEventListener('beforeprint', () => shown.querySelectorAll('details:not([open])').forEach(d => { closed.add(d); d.open = true; }));
  addEventListener('afterprint', () => { closed.forEach(d => { d.open = false; }); closed.clear(); });
})();
